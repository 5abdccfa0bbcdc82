"""Stand-in for an engine's process: a thread that serves the other end of a socket pair, quick to start or break."""

from __future__ import annotations

import itertools
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from bough.runtime.client import engine_process, remote
from bough.runtime.client.local import EngineLoop
from bough.runtime.client.messages import FrameWriter
from bough.runtime.client.spawn import EngineProcess
from bough.runtime.engine.engine import Engine
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.tokenizer.tokenizer import Tokenizer

Load = Callable[["EngineThread", FrameWriter], Engine]
"""Makes the engine of a process that loads; it may say so, take its time, or raise."""

PIDS = itertools.count(10_000_000)
"""No process has one of these."""


class EngineThread:
    """Has what is used of a `subprocess.Popen`. One that `survives` is not ended by SIGKILL, like a process that waits
    within a driver."""

    def __init__(self, load: Load, *, survives: bool = False) -> None:
        self.pid = next(PIDS)
        self.returncode: int | None = None
        self.load = load
        self.survives = survives
        self.signals: list[int] = []
        self.num_kills = 0
        self._ended = threading.Event()
        self._ours, self._theirs = socket.socketpair()
        self._end = self._theirs.dup()

    def spawned(self, *, serves: bool = True) -> EngineProcess:
        if serves:
            descriptor = self._theirs.detach()
            thread = threading.Thread(target=self._serve, args=(descriptor,), name=f"engine {self.pid}", daemon=True)
            thread.start()
        return EngineProcess(cast("Any", self), self._ours, time.monotonic())

    def _serve(self, descriptor: int) -> None:
        OF_THREAD[threading.get_ident()] = self
        self.end(engine_process.serve(descriptor))

    def end(self, status: int) -> None:
        """Ends as a process does: its end of the link is closed."""
        if not self._ended.is_set():
            self.returncode = status
            self._ended.set()
            self._end.shutdown(socket.SHUT_RDWR)
            self._end.close()

    def close(self) -> None:
        self.end(-9)
        self._ours.close()
        self._theirs.close()

    def kill(self) -> None:
        self.num_kills += 1
        if not self.survives:
            self.end(-9)

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        assert timeout is not None or not self.survives, "it never ends"
        if not self._ended.wait(timeout):
            assert timeout is not None
            raise subprocess.TimeoutExpired("engine", timeout)
        assert self.returncode is not None
        return self.returncode


OF_THREAD: dict[int, EngineThread] = {}


@pytest.fixture
def engine_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., EngineThread]]:
    """Makes stand-ins, which load their engines by the functions that they are given; the model's folder is nowhere."""
    made: list[EngineThread] = []

    def load(config: EngineConfig, writer: FrameWriter) -> EngineLoop:
        thread = OF_THREAD[threading.get_ident()]
        engine = thread.load(thread, writer)
        return EngineLoop(engine, config, on_death=lambda: thread.end(engine_process.EXIT_ENGINE_DIED))

    def make(load: Load, *, survives: bool = False) -> EngineThread:
        made.append(EngineThread(load, survives=survives))
        return made[-1]

    monkeypatch.setattr(engine_process, "_load", load)
    yield make
    for thread in made:
        thread.close()


def reads_tokenizer(monkeypatch: pytest.MonkeyPatch, read: Callable[[], Tokenizer]) -> None:
    """Has the client's tokenizer read by `read`."""
    monkeypatch.setattr(remote, "load_tokenizer", lambda path: read())
