"""Python types as constraints: annotations to JSON Schema, texts back to typed values, and checks of these.

A type comes in; a constraint and a converter go out.
"""
