"""The plan of each step: which sequences compute which tokens over which pages.

A pure function of its state: no clock, randomness, threads or tensors. Sequences come in, plans go out, results come
back in.
"""
