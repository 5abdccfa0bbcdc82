"""Matchers, the positions of generations in their grammars: masks, accepted and forced tokens, short completions.

A compiled grammar comes in, one matcher a generation goes out. `interface` is the seam to the engine.
"""
