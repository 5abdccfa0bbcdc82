"""Event loops for coroutines of tools: one, and a replacement while a coroutine blocks it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

logger = logging.getLogger("bough.tools")

BLOCKED_AFTER_S = 5.0
"""Seconds after which a loop that has not turned counts as blocked."""

MAX_LOOPS = 4
"""Most event loops. While all of them are blocked, coroutines of tools fail at once."""

EXITS = (SystemExit, KeyboardInterrupt)
"""Exceptions that `except Exception` does not catch, and that would end the event loop of all async tools."""

_LOOKS = 5
"""Checks within BLOCKED_AFTER_S, so that a process that was stopped for a while does not count its loop as blocked."""

_MAX_NAMES = 5
"""Most tools that the log names as awaited by a blocked loop."""


class ToolLoops:
    """Awaits coroutines on the first event loop that is not blocked. Thread-safe.

    A thread cannot be stopped from outside: a blocked loop stays with its calls, and takes further ones once it turns.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loops: list[ToolLoop] = []
        self._closed = False

    def free(self) -> ToolLoop:
        """Returns a loop that is not blocked. Raises RuntimeError or OSError: there is none, and none can be made."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the engine has stopped")
            self._loops = [loop for loop in self._loops if not loop.ended]
            loop = next((loop for loop in self._loops if not loop.blocked), None)
            if loop is None:
                if len(self._loops) >= MAX_LOOPS:
                    raise RuntimeError(
                        f"all {MAX_LOOPS} event loops of async tools are blocked by coroutines that do not return "
                        "(the log names their tools): await instead of blocking, or use a plain function"
                    )
                loop = ToolLoop()
                self._loops.append(loop)
            return loop

    @property
    def num_blocked(self) -> int:
        with self._lock:
            return sum(loop.blocked for loop in self._loops)

    def close(self) -> None:
        """Cancels what is awaited, and ends the loops; a blocked one ends once it turns."""
        with self._lock:
            self._closed = True
        for loop in self._loops:
            loop.stop()
        for loop in self._loops:
            loop.join()


class ToolLoop:
    """An event loop on a separate thread, and a second thread that watches its progress while calls are awaited.

    blocked   it made no progress for BLOCKED_AFTER_S, and has made none since
    """

    def __init__(self) -> None:
        """Raises RuntimeError if no thread can be started, and OSError if there are no descriptors left."""
        self.blocked = False
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._names: Counter[str] = Counter()
        self._called = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="bough-async-tools", daemon=True)
        try:
            threading.Thread(target=self._watch, name="bough-async-watch", daemon=True).start()
            self._thread.start()
        except RuntimeError:
            self._end_watch()
            self._loop.close()
            raise

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def run(self, name: str, coroutine: Coroutine[Any, Any, str]) -> Future[str]:
        """Starts to await a coroutine of the tool `name`. Raises RuntimeError if the loop has ended."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        with self._lock:
            self._names[name] += 1
            self._called.set()
        # Counted on the loop, since the future of a cancelled call ends before its coroutine.
        future.add_done_callback(lambda _: self.soon(lambda: self._leave(name)))
        return future

    def soon(self, callback: Callable[[], object]) -> None:
        """Schedules `callback` on the loop, unless it has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        self._end_watch()
        self.soon(self._loop.stop)

    def join(self) -> None:
        """Waits for the end of a loop that is not blocked."""
        if not self.blocked:
            self._thread.join(timeout=2.0)

    def _end_watch(self) -> None:
        with self._lock:
            self._stopping.set()
            self._called.set()

    def _leave(self, name: str) -> None:
        with self._lock:
            self._names[name] -= 1
            if not self._names[name]:
                del self._names[name]
            if not self._names and not self._stopping.is_set():
                self._called.clear()

    def _watch(self) -> None:
        pause_s = BLOCKED_AFTER_S / _LOOKS
        while self._called.wait() and not self._stopping.is_set():
            turned = threading.Event()
            self.soon(turned.set)
            num_looks = 0
            while not turned.wait(pause_s) and not self._stopping.is_set():
                num_looks += 1
                if num_looks == _LOOKS:
                    self._tell_blocked()
                    self.blocked = True
            if turned.is_set() and self.blocked:
                self.blocked = False
                logger.warning("an event loop of async tools that was blocked turns again")
            self._stopping.wait(pause_s)

    def _awaited(self) -> str:
        """Returns the names of the tools whose coroutines it awaits, for the log."""
        with self._lock:
            names = sorted(self._names)
        others = f" and {len(names) - _MAX_NAMES} others" if len(names) > _MAX_NAMES else ""
        return (", ".join(map(repr, names[:_MAX_NAMES])) or "nothing") + others

    def _tell_blocked(self) -> None:
        logger.error(
            "the event loop of async tools has not turned for %g s while it awaited %s: one of them blocks it, where "
            "it has to await or to be a plain function; calls that it awaits hang until it returns or their time is "
            "over, and later ones run on another loop (at most %d)",
            BLOCKED_AFTER_S,
            self._awaited(),
            MAX_LOOPS,
        )

    def _serve(self) -> None:
        """Runs the loop until `stop`, also after a tool has stopped it; then cancels the tasks that are left."""
        try:
            while True:
                with suppress(*EXITS):
                    self._loop.run_forever()
                if self._stopping.is_set():
                    break
                logger.error(
                    "the event loop of async tools goes on, although a tool stopped it or a task that one began called "
                    "sys.exit, while it awaited %s",
                    self._awaited(),
                )
            if tasks := asyncio.all_tasks(self._loop):
                for task in tasks:
                    task.cancel()
                with suppress(RuntimeError, *EXITS):  # one of them stops the loop, or exits, as it ends
                    self._loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
        except Exception:  # such as of a selector whose descriptor a tool has closed
            logger.exception(
                "an event loop of async tools has ended while it awaited %s: these hang until their time is over, and "
                "later calls run on another loop",
                self._awaited(),
            )
        finally:
            self._end_watch()
            self._loop.close()
