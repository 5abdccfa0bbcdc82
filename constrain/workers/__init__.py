"""Compilation service: concurrent compilations, bounded in time and memory, in processes that can be killed; the cache.

Specs come in, lowered grammars, automata and checks of finished values go out.
"""
