"""Lines for standard error, written beside what must not wait for whoever reads them."""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import TextIO

from ..protocol.errors import RequestError

LEVELS = ("debug", "info", "warning", "error", "critical")
"""Values of BOUGH_LOG."""

MAX_WAITING = 10_000
"""Lines that wait for a slow reader; further ones are dropped and counted."""

MAX_WAITING_BYTES = 8 * 2**20
"""Bytes of memory that the lines that wait take at most; a line that would go past them is dropped and counted."""

FLUSH_TIMEOUT_S = 1.0


class LineWriter:
    """Writes lines on a thread of its own, so that whoever reads them slowly, or not at all, delays nothing.

    A full disk, or a reader that is gone, costs the lines of that time. The next that can be written comes after the
    number of those that are missing.
    """

    def __init__(self, target: TextIO | None = None, *, dropped: Callable[[int], str]) -> None:
        """`target` is standard error, whatever that is by then, if it is None; `dropped(n)` is the line that says that
        n lines are missing."""
        self._target = target
        self._dropped = dropped
        self._num_dropped = 0
        self._num_bytes = 0
        # Both may be entered again by the handler of a signal that comes while the main thread writes a line.
        self._waiting: queue.SimpleQueue[tuple[int, str] | threading.Event] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None

    def write(self, line: str) -> None:
        """Writes it soon, or drops it. Never waits."""
        num_bytes = sys.getsizeof(line)
        with self._lock:
            if self._waiting.qsize() >= MAX_WAITING or self._num_bytes + num_bytes > MAX_WAITING_BYTES:
                self._num_dropped += 1
                return
            self._num_bytes += num_bytes
            num_dropped, self._num_dropped = self._num_dropped, 0
            self._waiting.put((num_dropped, line))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="bough-lines", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # there is none now: the next line may start it
                    self._thread = None

    def flush(self) -> None:
        """Waits until what was written before is out, FLUSH_TIMEOUT_S at most."""
        if self._thread is None or not self._thread.is_alive():
            return
        done = threading.Event()
        self._waiting.put(done)
        done.wait(FLUSH_TIMEOUT_S)

    def _work(self) -> None:
        output, num_lost = _Output(self._target), 0
        while True:
            item = self._waiting.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            num_dropped, line = item
            num_lost += num_dropped
            try:
                if num_lost:
                    output.write(self._dropped(num_lost))
                    num_lost = 0
                output.write(line)
            except Exception:  # noqa: BLE001  it is closed, its disk is full, it is no file: the next one may go
                num_lost += 1
            with self._lock:
                self._num_bytes -= sys.getsizeof(line)


class _Output:
    """Writes whole lines to a text stream; one that was cut ends before the next.

    Where the stream has a descriptor, that is written to: a stream's own buffer, or one that hides errors, would not
    tell what is lost.
    """

    def __init__(self, target: TextIO | None) -> None:
        self._target = target
        self._cut = False

    def write(self, line: str) -> None:
        """Raises OSError or ValueError if the line is lost."""
        target = self._target or sys.stderr
        if target is None:
            raise ValueError("there is no standard error")
        target.flush()
        try:
            descriptor = target.fileno()
        except OSError:
            target.write(f"{line}\n")
            target.flush()
            return
        left = f"{line}\n".encode(target.encoding, "backslashreplace")
        if self._cut:
            left = b"\n" + left
        while left:
            left = left[os.write(descriptor, left) :]
            self._cut = bool(left)


class LineHandler(logging.Handler):
    """Hands the records of a log to a LineWriter."""

    def __init__(self) -> None:
        super().__init__()
        self._lines = LineWriter(dropped="WARNING bough: {} lines of the log were dropped".format)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.write(self.format(record))
        except Exception:  # noqa: BLE001  a record that cannot be formatted
            self.handleError(record)

    def flush(self) -> None:
        self._lines.flush()


def log_to_stderr() -> None:
    """Sends this process's log to standard error, from the level on that BOUGH_LOG names, if it goes nowhere yet.

    Raises:
        RequestError: BOUGH_LOG names no level.
    """
    logging.raiseExceptions = False  # what fails while it logs must not write to standard error itself
    level = os.environ.get("BOUGH_LOG") or "warning"
    if level.lower() not in LEVELS:
        raise RequestError(f"BOUGH_LOG must be {', '.join(LEVELS[:-1])} or {LEVELS[-1]}, got {level!r}")
    logging.basicConfig(level=level.upper(), format="%(levelname)s %(name)s: %(message)s", handlers=[LineHandler()])
