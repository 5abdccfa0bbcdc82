"""JSON texts read while they are being written: which part comes next, what a prefix means, how to close it.

Prefixes of JSON come in; values so far, paths and closing texts go out.
"""
