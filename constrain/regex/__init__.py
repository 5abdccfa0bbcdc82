"""Regular languages of texts and numbers: built, combined (intersection, complement), decided, written as terminals.

Patterns, formats and bounds come in; languages whose emptiness and equality can be asked go out as terminals or
automata.
"""
