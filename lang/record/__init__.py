"""Recording: turns what a body appends (expressions, with options, variables and conditions) into instructions.

Expressions come in; segments of a `runtime` program go out.
"""
