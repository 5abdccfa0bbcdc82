"""Where in the user's code an instruction was recorded."""

from __future__ import annotations

import sys
from types import FrameType
from typing import NamedTuple

_THIS_PACKAGE = __name__.rpartition(".")[0]


class Place(NamedTuple):
    """A line of a program."""

    file: str
    line: int
    function: str


def caller() -> Place:
    """The innermost line that is being executed outside the language itself."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_THIS_PACKAGE):
        frame = frame.f_back
    if frame is None:
        return Place("<unknown>", 0, "<unknown>")
    return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
