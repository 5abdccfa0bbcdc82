"""The HTTP server: OpenAI's API, programs, and what operators need. HTTP only; no model code.

A client that leaves is noticed by `http.connection.run_while_connected`. What it asked for is closed
(`http.answers.Merged.close`), and with it the engine's stream (`runtime.client.streams.aiterate`), which has
`Engine.abort` end a request, or `Executor.drop` a program.
"""
