"""Operations of a decoder layer between its products: norms, rotary positions, gated activations.

Rows come in, rows go out; `select` chooses between torch and Triton.
"""
