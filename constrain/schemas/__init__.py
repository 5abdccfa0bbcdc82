"""JSON Schema: a document, opened into the values it allows, and written as a grammar."""
