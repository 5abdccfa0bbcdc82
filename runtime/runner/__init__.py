"""Runners of forward passes: on the CPU library, in torch, on a GPU eagerly or as graphs.

Plans come in; logits or drawn tokens go out. Where sequences share pages, found by `scheduler` in the cache,
`gpu_shared_reads` lets a decode step read them once.
"""
