"""OpenAI's API: requests checked and translated for the engine, outputs written as replies and chunks.

Decoded bodies come in, engine requests go out; engine outputs come in, OpenAI's JSON goes out.
"""
