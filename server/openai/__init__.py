"""OpenAI's API: checks requests and translates them for the engine, and writes outputs as replies and chunks.

Decoded bodies come in and engine requests go out; engine outputs come in and OpenAI's JSON goes out.
"""
