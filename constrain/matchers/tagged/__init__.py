"""Free text with tagged segments that keep constraints of their own: tool calls, tags, reasoning.

A compiled grammar per tag comes in, one matcher over the whole text goes out.
"""
