"""What a benchmark's process and the one that started it say to each other, a line of JSON at a time."""

from __future__ import annotations

import msgspec

from .rows import Row

MARK = "@bench "
"""Begins a line that is meant for the parent; all others are chatter of libraries."""

CONTEXT_LOST = 3
"""Exit status: a kernel ended the process's CUDA context."""


class Event(msgspec.Struct, kw_only=True):
    """A line to the parent: case `number` begins (and has something to say `within_s`), gave a row or ended without.

    With `peer`, what is said is that the case that runs tries that one next.
    """

    number: int = 0
    case: str = ""
    within_s: float | None = None
    peer: str | None = None
    row: Row | None = None
    skipped: str | None = None
