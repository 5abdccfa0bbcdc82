"""Opened schemas written as grammars: scalars, arrays, objects, and what must be unique.

A graph of values comes in, rules of a context-free grammar go out.
"""
