"""Interfaces to an engine: in this process, in another, or called step by step (`LLM`).

Requests and programs come in; outputs and program events go out, one terminal event each. Who leaves a stream early
ends its work (`streams.iterate`, `streams.aiterate`).
"""
