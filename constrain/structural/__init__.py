"""Free text with marked stretches that keep constraints of their own: tool calls, tags, reasoning."""
