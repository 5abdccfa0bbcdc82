"""The words of the command line: its parser, options made from settings, where their values come from, and the
spellings of other engines."""
