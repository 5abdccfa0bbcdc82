"""Templates, programs with holes: checks them, fills in arguments, and reads results back.

A template and arguments come in and a program goes out; its events come in and a result goes out.
"""
