"""Tests of the engine on a simulated GPU: it answers as torch does on the CPU, and its calls of the device are
counted."""
