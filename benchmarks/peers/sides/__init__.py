"""Sides of a contest, each run in the environment of its peer; only bough's own side may import bough.

Lines of JSON come in; lines of JSON go out.
"""
