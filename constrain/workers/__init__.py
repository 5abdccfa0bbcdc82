"""Concurrent compilations, each bounded in time and memory, in processes that can be killed, and the cache of grammars.

Specs come in, lowered grammars, automata and checks of finished values go out.
"""
