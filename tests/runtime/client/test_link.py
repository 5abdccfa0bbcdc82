"""A link to the engine that loses or mangles messages: clients get an error, never silence or wrong text."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bough.runtime.client.messages import HEAD_BYTES
from bough.runtime.client.spawn import EngineProcess, spawn_engine
from bough.runtime.client.supervisor import Supervisor
from bough.runtime.protocol.errors import BoughError, EngineStoppedError
from bough.runtime.protocol.program import Failed

from ..asking import config, program, request, tokens, wait_until

Mangle = Callable[[bytes], bytes]
"""Change of a frame, head included."""


def dropped(frame: bytes) -> bytes:
    return b""


def flipped(frame: bytes) -> bytes:
    """The same length, another type of message."""
    return frame[:HEAD_BYTES] + bytes([frame[HEAD_BYTES] ^ 0xFF]) + frame[HEAD_BYTES + 1 :]


class Proxy:
    """Stands between a client and an engine's process. `mangle` is done to the next frame of the engine's, once set."""

    def __init__(self) -> None:
        spawned = spawn_engine()
        self.process, self._engine = spawned.process, spawned.connection
        self.ours, self._client = socket.socketpair()
        self.mangle: Mangle | None = None
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._to_engine, self._to_client)]
        for thread in self._threads:
            thread.start()

    @property
    def spawned(self) -> EngineProcess:
        return EngineProcess(self.process, self.ours, time.monotonic())

    def _to_engine(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._client.recv(1 << 16):
                self._engine.sendall(data)
            self._engine.shutdown(socket.SHUT_WR)

    def _to_client(self) -> None:
        with contextlib.suppress(OSError), self._engine.makefile("rb") as frames:
            while len(head := frames.read(HEAD_BYTES)) == HEAD_BYTES:
                frame = head + frames.read(int.from_bytes(head[:4], "little"))
                if self.mangle is not None:
                    frame, self.mangle = self.mangle(frame), None
                self._client.sendall(frame)
            self._client.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for thread in self._threads:
            thread.join(10.0)
        self._engine.close()
        self._client.close()


@pytest.fixture
def proxied(folder: Path) -> Iterator[tuple[Proxy, Supervisor]]:
    proxy = Proxy()
    client = Supervisor(config(folder), None, proxy.spawned, restarts=0)
    yield proxy, client
    client.close()
    proxy.close()


@pytest.mark.parametrize("mangle", [dropped, flipped])
def test_a_link_that_fails_is_told_of(mangle: Mangle, proxied: tuple[Proxy, Supervisor]) -> None:
    proxy, client = proxied
    expected = tokens(list(client.stream(request(450))))
    stream, side = client.stream(request(450)), client.run(program())
    heard = [next(stream)]
    proxy.mangle = mangle
    began = time.monotonic()
    heard += stream
    assert time.monotonic() - began < 10.0  # the next heartbeat tells, if nothing else comes
    last = heard[-1].finish
    assert last is not None and last.error is not None and last.error.code == "engine_dead"
    assert tokens(heard) == expected[: len(tokens(heard))], "something was lost in silence"
    with contextlib.suppress(BoughError):
        assert isinstance(list(side)[-1], Failed)
    wait_until(lambda: not client.alive, 10.0)
    with pytest.raises(EngineStoppedError):
        client.check()
