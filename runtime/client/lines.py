"""Non-blocking lines to standard error, so that a slow reader delays nothing."""

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
"""Most lines that wait for a slow reader; further ones are dropped and counted."""

MAX_WAITING_BYTES = 8 * 2**20
"""Most bytes of memory for waiting lines; a line that would exceed them is dropped and counted."""

FLUSH_TIMEOUT_S = 1.0


class LineWriter:
    """Writes lines on a separate thread, so that a slow or absent reader delays nothing.

    While the disk is full or the reader is gone, lines are lost. The next one that can be written is preceded by a line
    with the number of those that are missing.
    """

    def __init__(self, target: TextIO | None = None, *, dropped: Callable[[int], str]) -> None:
        """Writes to `target`, or if it is None, to the standard error of the time. `dropped(n)` returns the line that
        says that n lines are missing."""
        self._target = target
        self._dropped = dropped
        self._num_dropped = 0
        self._num_bytes = 0
        # Reentrant: a signal handler may log while the main thread writes a line.
        self._waiting: queue.SimpleQueue[tuple[int, str] | threading.Event] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None

    def write(self, line: str) -> None:
        """Queues a line, or drops it. Never blocks."""
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
                except RuntimeError:  # no thread can be started now: the next line may start it
                    self._thread = None

    def flush(self) -> None:
        """Waits until all queued lines are written, at most FLUSH_TIMEOUT_S."""
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
            except Exception:  # noqa: BLE001  closed, disk full, or no file: the next line may succeed
                num_lost += 1
            with self._lock:
                self._num_bytes -= sys.getsizeof(line)


class _Output:
    """Writes whole lines to a text stream; a truncated one is ended before the next.

    Writes to the stream's descriptor if it has one: the buffer of a stream, or a stream that hides errors, would not
    report lost lines.
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
    """Passes log records to a LineWriter."""

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
    """Sends this process's log to standard error from the level in BOUGH_LOG on, unless it has a handler already.

    Raises:
        RequestError: BOUGH_LOG is not the name of a level.
    """
    logging.raiseExceptions = False  # a failure in logging must not write to standard error itself
    level = os.environ.get("BOUGH_LOG") or "warning"
    if level.lower() not in LEVELS:
        raise RequestError(f"BOUGH_LOG must be {', '.join(LEVELS[:-1])} or {LEVELS[-1]}, got {level!r}")
    logging.basicConfig(level=level.upper(), format="%(levelname)s %(name)s: %(message)s", handlers=[LineHandler()])
