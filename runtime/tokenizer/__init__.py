"""Text to tokens and back: tokenizers from GGUF and JSON files, sandboxed chat templates, marks of reasoning.

Messages and texts come in; token ids go out.
"""
