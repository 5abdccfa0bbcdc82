"""Handle of a side of a comparison: a process that does one job after another and is idle in between."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...runtime.protocol.errors import BoughError
from .sides import peer_side

OURS = "bough"

_GRACE_S = 3.0


class PeerError(BoughError):
    """A peer cannot be measured: its environment, model or process could not be had. The text says why."""


class Side:
    """A running side. Its first message says that it is ready. Whoever makes it calls `close`.

    The process leads a group of its own, so that ending it ends what it started.

    name      what to call it
    command   what to run: it speaks the protocol of `peer_side`
    log       gets all that is printed beside it

    Raises:
        PeerError: there is no such program.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, log: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.ended = ""
        """Reason why the process answers no more, for all that it is asked from then on."""
        self._messages: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._log = log.open("a")
        self._log.write(f"$ {' '.join(command)}\n")
        self._log.flush()
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", **(variables or {})}
        streams: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._log, "text": True}
        try:
            self._process = subprocess.Popen(command, **streams, env=environment, start_new_session=True)
        except OSError as error:
            self._log.close()
            raise PeerError(f"{command[0]}: {error.strerror}") from error
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_ready(self, limit_s: float) -> dict[str, Any]:
        """Waits for its first message: `ready`, the seconds that it took to load. Raises as `ask`."""
        return self._receive(limit_s)

    def ask(self, job: str, limit_s: float, **arguments: Any) -> dict[str, Any]:
        """The answer to a job. Raises PeerError: the job failed, the process ended, or took too long (and is ended)."""
        if self.ended:
            raise PeerError(self.ended)
        try:
            self._input.write(json.dumps({"job": job, **arguments}) + "\n")
            self._input.flush()
        except (BrokenPipeError, ValueError) as error:
            raise self._gone(f"{self.name} has ended; its output is in {self._log.name}") from error
        return self._receive(limit_s)

    def close(self) -> None:
        """Ends the process and what it started, politely first. Does nothing if it has ended."""
        with contextlib.suppress(BrokenPipeError):  # something was still to be read
            self._input.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None or number == signal.SIGKILL:
                with contextlib.suppress(ProcessLookupError):  # the whole group has ended
                    os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
        self._reader.join(timeout=_GRACE_S)
        if not self._reader.is_alive():
            self._output.close()
        self._log.close()

    def _read(self) -> None:
        """Tells messages, lines that begin with the mark, from what goes to the log."""
        for line in self._output:
            if line.startswith(peer_side.MARK):
                self._messages.put(line.removeprefix(peer_side.MARK))
            else:
                self._log.write(line)
        self._messages.put(None)

    def _receive(self, limit_s: float) -> dict[str, Any]:
        try:
            line = self._messages.get(timeout=max(limit_s, 0.0))
        except queue.Empty:
            self.close()
            raise self._gone(f"{self.name}: no answer within {limit_s:.0f} s") from None
        if line is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(30.0)
            self.close()
            raise self._gone(f"{self.name} ended with status {self._process.returncode}; see {self._log.name}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{self.name}: {answer['error']}")
        return answer

    def _gone(self, reason: str) -> PeerError:
        self.ended = reason
        return PeerError(reason)


_RUN = "import runpy, sys; sys.path.append(sys.argv.pop(1)); runpy.run_module('sides.peer_side', {}, '__main__', True)"
"""Runs the folder of sides as a package by itself."""


def side_command(kind: str, engine: str, interpreter: Path | None, options: Mapping[str, Any]) -> list[str]:
    """Command that runs a side.

    kind         of `peer_side.KINDS`
    interpreter  of the peer's environment; None: ours, as a module
    """
    if interpreter is None:
        command = [sys.executable, "-P", "-u", "-m", peer_side.__name__]  # -P: the folder must not hide other packages
    else:
        folder = str(Path(peer_side.__file__).resolve().parent.parent)
        command = [str(interpreter), "-P", "-u", "-c", _RUN, folder]
    return [*command, kind, engine, json.dumps(options)]
