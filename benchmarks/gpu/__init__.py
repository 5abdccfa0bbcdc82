"""Benchmarks on a GPU, one command: ceilings, kernels, decode steps, and peers on the same work.

A GPU comes in; rows, tables and plots go out, each with its target.
"""
