"""Programs over HTTP: sent as instructions, or deployed by name with a schema of their own in the OpenAPI document.

Programs, and templates from files or over HTTP, come in; runs and their events go out.
"""
