"""JSON Schema: parsed as a document, opened into the values that it allows, and written as a grammar.

A schema of any dialect comes in; a grammar's source, a receipt of what it enforces, and checks for the rest go out.
"""
