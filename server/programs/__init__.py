"""Deployed programs as routes, each with its own schema in the OpenAPI document.

Program templates come in from files or over HTTP, runs and their events go out.
"""
