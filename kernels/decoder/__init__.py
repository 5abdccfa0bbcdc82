"""What a decoder layer needs between its products: norms, rotary positions, gated activations.

Rows come in, rows go out; `select` chooses between torch and Triton.
"""
