"""HTTP server: OpenAI's API, programs, and endpoints for operators. HTTP only; no model code.

`http.connection.run_while_connected` notices that a client has disconnected. Its streams are then closed
(`http.answers.Merged.close`), and with them the engine's (`runtime.client.streams.aiterate`), which ends a request by
`Engine.abort` and a program by `Executor.drop`, unless it is over.
"""
