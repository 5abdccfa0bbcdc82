"""Passes over the model, launched and read: on the CPU library, in torch, on a GPU eagerly or as graphs.

Plans come in, logits or drawn tokens go out. Where sequences share pages, which `scheduler` has found in the cache,
`gpu_shared_reads` lets a decode step read them once.
"""
