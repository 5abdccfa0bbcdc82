"""Workloads of the benchmarks: programs, prompts, and seeded texts for them.

Sizes and seeds come in; the same programs and prompts for every side go out.
"""
