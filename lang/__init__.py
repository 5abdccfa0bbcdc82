"""The language: Python functions that record LLM programs, and the backends that run them."""
