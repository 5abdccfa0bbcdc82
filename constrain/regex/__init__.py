"""Regular languages of texts and numbers: built, combined (intersection, complement), decided, written as terminals.

Patterns, formats and bounds come in; languages that can be tested for members, emptiness and common words go out as
terminals or automata.
"""
