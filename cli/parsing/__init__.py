"""Parsing of the command line: the parser, options made from settings, the sources of their values, and the spellings
of other engines."""
