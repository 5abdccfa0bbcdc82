"""Recording: what a body appends becomes instructions, by way of expressions, options, variables and conditions.

Expressions come in, segments of a `runtime` program go out.
"""
