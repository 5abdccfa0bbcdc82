"""Anthropic's Messages API: its bodies as chats of `server.openai`, and what is generated as its messages and events.

Decoded bodies come in and leave as jobs for the engine; the engine's outputs come in and leave as messages, or as the
events of a stream. Errors of its routes, wherever they arise, are written in its `dialect`.
"""
