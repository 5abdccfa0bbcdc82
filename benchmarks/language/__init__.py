"""Benchmarks of the language: programs as one request, compared with the same calls one by one over HTTP.

Programs come in; times, tokens and requests go out.
"""
