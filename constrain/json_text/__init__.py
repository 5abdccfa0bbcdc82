"""Incremental readers of JSON: the part that comes next, the value so far, and the text that closes it.

Prefixes of JSON come in; values so far, paths and closing texts go out.
"""
