"""The language: Python functions that record LLM programs, and the backends that run them.

`api`, `control` and `function` are what users write; floors, from the top: sglang | compile | backends, run, state,
session, record, types | tools, diagnostics.
"""
