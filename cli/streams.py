"""Standard streams that may be closed, broken or full, none of which may stop a server."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, TextIO, cast


class Forgiving:
    """Text stream around another, on which nothing fails: what cannot be written is lost."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def repair_streams() -> None:
    """Opens the standard streams that are closed, so that no other file takes their place, and makes standard error
    forgiving."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115  for the life of the process
    if not isinstance(sys.stderr, Forgiving):
        sys.stderr = cast("TextIO", Forgiving(sys.stderr))


def drop_output() -> None:
    """Leads standard output nowhere from now on, since its reader is gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
