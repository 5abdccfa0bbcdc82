"""Parsing of the command line: the parser, options derived from settings, the sources of their values, and the option
names of other engines."""
