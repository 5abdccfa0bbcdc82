"""Operations of a decoder layer between its products: norms and gated activations; rotary positions in torch.

Rows come in, rows go out; `select` chooses between torch and Triton. In Triton, rotary positions are applied in
`attention.rope_store`.
"""
