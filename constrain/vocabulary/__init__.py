"""A model's tokens as bytes, and tables precomputed from them.

A tokenizer's inventory comes in; tries, tables and rows of masks that every matcher shares go out.
"""
