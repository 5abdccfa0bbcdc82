"""What a body appends becomes instructions: expressions, options, variables, conditions, and their lowering.

Expressions come in, segments of a `runtime` program go out.
"""
