"""Tools for programs: Python functions, HTTP endpoints, tools of MCP servers, and the offer of tools to a model.

A callable or an address comes in; a tool with a schema of its arguments goes out.
"""
