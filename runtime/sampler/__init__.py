"""Drawing the tokens of a pass on the host, in C or in torch, seeded by (seed, position) alone.

Logits, masks and sampling parameters come in; tokens and log-probabilities go out.
"""
