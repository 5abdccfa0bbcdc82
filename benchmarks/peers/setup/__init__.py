"""Environments, models and tokenizers of peers, made once and kept.

Recipes come in; interpreters and converted weights go out. A peer's pins never touch ours.
"""
