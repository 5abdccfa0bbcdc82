"""Workloads: programs, prompts and the texts that they are about.

Sizes and seeds come in; the same programs and prompts for every side go out.
"""
