"""Uniqueness of array elements and object keys, which no grammar can express.

Paths of a schema come in; while a text is written, tokens that would repeat a value are masked.
"""
