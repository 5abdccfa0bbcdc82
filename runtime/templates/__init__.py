"""Templates, programs with holes: checks them, fills in arguments, and reads results back.

A template and arguments come in, a program goes out; its events come in, a result goes out.
"""
