"""Sampling of a pass's tokens: in C on the host, or in torch on any device, with random numbers by (seed, position).

Logits, masks and sampling parameters come in; tokens and log-probabilities go out.
"""
