"""Regular constraints as tables: a state is a number, its mask a row.

Automata come in; matchers whose rows can live on a GPU go out.
"""
