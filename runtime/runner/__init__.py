"""Passes over the model, launched and read: on the CPU library, in torch, on a GPU eagerly or as graphs.

A planned batch comes in, logits or drawn tokens go out.
"""
