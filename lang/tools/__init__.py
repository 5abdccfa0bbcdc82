"""Tools that programs use: Python functions and HTTP endpoints, described by their signatures.

A callable comes in, a `Tool` with a schema goes out.
"""
