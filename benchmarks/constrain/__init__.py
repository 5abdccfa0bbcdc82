"""Benchmarks of constrained decoding: correctness, coverage and speed of bough and of other grammar engines.

Schemas and documents come in; verdicts and times go out.
"""
