"""Opening of schemas: follows references and expands applicators until only types and bounds are left.

A parsed document comes in, a graph of the values that it allows goes out.
"""
