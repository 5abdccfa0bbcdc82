"""The HTTP server: OpenAI's API, programs, and what operators need. HTTP only; no model code.

A client that leaves is noticed by `http.connection.run_while_connected`; its program is stopped by
`runtime.programs.executor.Executor.drop`.
"""
