"""One side of a contest each, run in the interpreter of its peer: nothing here may need bough but bough's own side.

Lines of JSON come in, lines of JSON go out.
"""
