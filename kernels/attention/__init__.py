"""Attention over a paged cache of keys and values, shared prefixes included.

A batch (page tables, lengths, groups that share pages) comes in once a step, queries, keys and values once a layer;
attended rows go out. `interface` is the interface, `select` chooses between torch and Triton.
"""
