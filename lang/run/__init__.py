"""Runs of a function: one, a batch, or a stream of events.

A function and its arguments come in, final states or results go out.
"""
