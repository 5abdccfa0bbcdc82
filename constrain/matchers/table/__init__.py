"""Regular constraints as tables: a state is a number, its mask a row.

An automaton comes in, a matcher whose rows can live on a GPU goes out.
"""
