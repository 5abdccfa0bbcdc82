"""Searches for bugs of constrained decoding: random schemas and values, official suites, hostile input, endurance.

Seeds come in; shrunk counterexamples go out.
"""
