"""OpenAI's Responses API on top of chats: translation, streamed events, and the store of finished responses.

Decoded bodies and the items of earlier responses come in, chat jobs go out; the engine's outputs come in, items, events
and whole responses go out. Responses are kept by API key, within bounds, so that later ones can follow on them.
"""
