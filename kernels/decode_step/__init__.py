"""The end of a decode step on the device: the draw, the next grammar state, the next input.

Logits and per-slot state come in, tokens and the state of the next step go out; nothing is read by the host.
"""
