"""A lock whose holders can wait for changes; thousands of idle ones are cheap."""

from __future__ import annotations

import threading
from typing import Self


class Monitor:
    """As `threading.Condition`, which is made when the first thread waits: most programs are waited for by tasks."""

    __slots__ = ("_condition", "_lock")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._condition: threading.Condition | None = None

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def acquire(self) -> None:
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    def wait(self) -> None:
        """Gives the lock away until another thread notifies. It must be held."""
        if self._condition is None:
            self._condition = threading.Condition(self._lock)
        self._condition.wait()

    def notify_all(self) -> None:
        """Wakes all threads that wait. The lock must be held."""
        if self._condition is not None:
            self._condition.notify_all()
