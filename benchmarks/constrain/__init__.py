"""Constrained decoding: right, complete, fast; grammar engines beside ours.

Schemas and documents come in; verdicts and times go out.
"""
