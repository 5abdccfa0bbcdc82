"""Regular constraints as tables: a row of the mask and a next state for each state."""
