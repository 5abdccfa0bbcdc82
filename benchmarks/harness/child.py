"""A child process that answers in marked lines, waited for no longer than told, and ended with all it started."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_GRACE_S = 3.0


class GoneError(Exception):
    """The process has ended, or was ended because it did not answer in time."""


class Child:
    """Standard output that begins with `mark` are messages; all other output goes to `log`, which keeps it.

    The process leads a group of its own, so that ending it ends what it started. Whoever makes a child calls `end`.

    Raises:
        OSError: there is no such program.
    """

    def __init__(
        self, command: Sequence[str], *, mark: str, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._mark = mark
        self._messages: queue.Queue[str | None] = queue.Queue()
        self._log = log.open("a")
        self._log.write(f"$ {' '.join(command)}\n")
        self._log.flush()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        except OSError:
            self._log.close()
            raise
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(self._mark):
                self._messages.put(line[len(self._mark) :])
            else:
                self._log.write(line)
        self._messages.put(None)

    def send(self, line: str) -> None:
        """Raises GoneError if nobody reads it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise GoneError("the process has ended") from error

    def receive(self, timeout_s: float) -> str | None:
        """The next message; None once the process has closed its output, in good order or not.

        Raises:
            GoneError: there was none in time; the process has been ended.
        """
        try:
            return self._messages.get(timeout=max(timeout_s, 0.0))
        except queue.Empty:
            self.end()
            raise GoneError(f"no answer within {timeout_s:.0f} s") from None

    def wait(self) -> int:
        """Exit status of a process that has closed its output."""
        try:
            return self._process.wait(timeout=30.0)
        except subprocess.TimeoutExpired:
            self.end()
            return self._process.wait()

    def end(self) -> None:
        """Ends the process and what it started, politely first. Does nothing if it has ended."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # something was still to be read
                self._process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None or number == signal.SIGKILL:
                with contextlib.suppress(ProcessLookupError):  # the whole group has ended
                    os.killpg(self._process.pid, number)
            deadline = time.monotonic() + _GRACE_S
            while self._process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
        self._reader.join(timeout=_GRACE_S)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()
        self._log.close()


def python_command(module: str) -> list[str]:
    """This interpreter on a module of the benchmarks, such as "gpu.worker".

    -P: the folder that it is started in must not hide other packages.
    """
    benchmarks = __package__.rpartition(".")[0]
    return [sys.executable, "-P", "-u", "-m", f"{benchmarks}.{module}"]
