"""Start and end of a decode step on the device: its inputs, the draw, and the next grammar states.

Logits and per-slot state come in, tokens and the state of the next step go out; the host reads nothing in between.
"""
