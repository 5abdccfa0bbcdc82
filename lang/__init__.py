"""The language: Python functions that record LLM programs, and the backends that run them.

Users write `api`, `control` and `function`; `backend` is the interface to backends. Layers, from the top: sglang,
backends, api, control, function, compile, run, state, session, observe | tools, backend | record, diagnostics | types.
"""
