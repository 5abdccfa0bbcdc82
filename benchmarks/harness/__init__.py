"""Shared tools of the benchmarks: servers to measure, timings, models with random weights, reports and their pictures.

Commands and shapes come in; figures, and processes that end with their parent, go out.
"""
