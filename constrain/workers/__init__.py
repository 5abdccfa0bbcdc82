"""Compilations side by side, each bounded in time and memory, in processes that can be ended.

Specs come in, lowered grammars, automata and checks of finished values go out.
"""
