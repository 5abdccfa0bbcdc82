"""Benchmarks of constrained decoding: correctness, coverage and speed, of ours and of other grammar engines.

Schemas and documents come in; verdicts and times go out.
"""
