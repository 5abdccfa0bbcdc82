"""The engine on a GPU that is not there: its answers are those of torch on the CPU, and what it asks of the device is
counted."""
