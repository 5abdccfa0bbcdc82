"""Programs over HTTP: sent as instructions, or deployed by name with a schema of their own in the OpenAPI document.

If a client leaves before the last event, `server.http.connection.run_while_connected` notices; the program's events
are closed, streamed or not, and with them `runtime.client.streams.aiterate`, which has `Executor.drop` stop the program
and forget the state it kept. Programs, and templates from files or over HTTP, come in; runs and their events go out.
"""
