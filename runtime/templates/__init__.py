"""Programs with holes: arguments filled in, checked beforehand, results read back.

A template and arguments come in, a program goes out; its values come in, a result goes out.
"""
