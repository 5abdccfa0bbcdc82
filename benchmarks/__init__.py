"""Benchmarks, one command each: they print numbers as JSON, and every claim is a ratio within one run."""
