"""Benchmarks, one command each. They print numbers as JSON; every claim is a ratio measured within one run."""
