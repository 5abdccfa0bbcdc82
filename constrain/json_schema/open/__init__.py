"""Schemas opened: references followed, applicators expanded, until only types and bounds are left.

A parsed document comes in, a graph of the values that it allows goes out.
"""
