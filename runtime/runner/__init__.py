"""Passes over the model, launched and read: on the CPU library, in torch, on a GPU eagerly or as graphs.

Sequences that share pages are found in the cache by `scheduler`; `gpu_shared_reads` has what they share read once. A
planned batch comes in, logits or drawn tokens go out.
"""
