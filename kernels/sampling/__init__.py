"""Sampling of tokens from logits: penalties, temperature, thresholds, grammar masks and seeded draws.

Logits [R, V] and per-row settings come in; token ids and their log-probabilities go out.
"""
