"""Model files: found, fetched, and read within their bounds (safetensors, GGUF, quantised folders).

A path or a name comes in; configurations and stored weights go out. Nothing in a file is ever executed.
"""
