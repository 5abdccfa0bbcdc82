"""Context-free grammars in the notations that clients use (Lark, GBNF), checked before they run.

The text of a grammar comes in; one that llguidance accepts goes out, or an error that names the line.
"""
