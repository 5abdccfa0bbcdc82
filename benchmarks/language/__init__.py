"""The language: programs as one request against gen by gen over HTTP.

Programs come in; times, tokens and requests go out.
"""
