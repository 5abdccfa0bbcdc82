"""Programs over HTTP: sent as instructions, or deployed by name with their own schema in the OpenAPI document.

Programs, and templates from files or over HTTP, come in; runs and their events go out.

When a client leaves before the last event (`server.http.connection.run_while_connected`), the program's events are
closed, whether they are streamed or collected. That closes the engine's stream (`runtime.client.streams.aiterate`), and
`Executor.drop` stops the program and forgets its state, kept or not.
"""
