"""Free text with tagged segments that have their own constraints: tool calls, tags, reasoning.

A compiled grammar per tag comes in; one matcher over the whole text goes out.
"""
