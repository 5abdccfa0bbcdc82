"""JSON texts, read while they are being written: the part that comes next, the value so far, and how to close it.

Prefixes of JSON come in; values so far, paths and closing texts go out.
"""
