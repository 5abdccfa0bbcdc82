"""Python types as constraints: annotations to JSON Schema, and texts back to typed values.

A type comes in, a schema and a converter go out.
"""
