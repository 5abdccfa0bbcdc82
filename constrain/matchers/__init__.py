"""Positions of generations in their grammars: masks, accepted tokens, forced tokens, ways to the end.

A compiled grammar comes in, one matcher a generation goes out. `interface` is the seam to the engine.
"""
