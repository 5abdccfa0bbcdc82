"""Runs of a function: a single one, a batch, or one as a stream of events.

A function and its arguments come in; final states or results go out.
"""
