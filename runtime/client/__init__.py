"""Clients of an engine: in this process (`local`), in another (`remote`, `supervisor`), or called by step (`llm`).

Requests and programs come in; outputs and program events go out, the last of them terminal. A consumer that leaves a
stream early ends its work (`streams.iterate`, `streams.aiterate`).
"""
