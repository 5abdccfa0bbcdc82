"""Matchers: the positions of generations in their grammars, with masks, accepted and forced tokens, short completions.

Compiled grammars come in; a matcher for each generation goes out. `interface` is the interface to the engine.
"""
