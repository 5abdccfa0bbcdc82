"""A task that waits for news of a program, which others bring."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable


class Waiter:
    """A task that waits until `done`."""

    __slots__ = ("_loop", "_thread", "done", "future")

    def __init__(self, done: Callable[[], bool]) -> None:
        self.done = done
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.future: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> None:
        if threading.get_ident() == self._thread:
            self._resolve()
        else:
            with contextlib.suppress(RuntimeError):  # its event loop is closed
                self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        if not self.future.done():
            self.future.set_result(None)
