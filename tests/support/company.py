"""Tests beside each other in several processes, and those that measure time by themselves."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Company:
    """A lock that any number of processes share, or one has alone.

    One that wants it alone keeps the door shut while it waits, so that those who would share do not pass it by.
    """

    def __init__(self, folder: Path) -> None:
        self._door = (folder / "door.lock").open("w")
        self._room = (folder / "room.lock").open("w")

    @contextmanager
    def held(self, *, alone: bool) -> Iterator[None]:
        fcntl.flock(self._door, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)

    def close(self) -> None:
        self._door.close()
        self._room.close()
