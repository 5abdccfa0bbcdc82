"""Models: the native decoder for the CPU library and for torch, and any other model through transformers.

A checkpoint comes in; a `Model` (tokens and positions to hidden rows, hidden rows to logits) goes out, or for the CPU
library, which runs whole passes, a `NativeDecoder`.
"""
