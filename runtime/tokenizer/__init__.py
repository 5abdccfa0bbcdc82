"""Text to tokens and back: tokenizers from GGUF and JSON files, chat templates, control tokens.

Messages and texts come in, token ids go out.
"""
