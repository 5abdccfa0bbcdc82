"""Benchmarks, one command each: numbers as JSON, and every claim a ratio within one run."""
