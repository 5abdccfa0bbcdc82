"""Elements and keys that must differ, where no grammar can say so.

Paths of a schema come in; while a text is written, tokens that would repeat a value are masked.
"""
