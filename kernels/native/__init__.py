"""CPU library, written in C (source/): whole forward passes over quantised weights, and draws.

Weights in tiles and flat batches come in through ctypes; logits and tokens go out. Only `packed` imports torch.
"""
