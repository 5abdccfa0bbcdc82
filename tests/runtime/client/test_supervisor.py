"""The engine's process is watched, and started again: what clients see when it dies, stops or hangs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bough.runtime.client import remote, supervisor
from bough.runtime.client.client import EngineClient
from bough.runtime.client.remote import RemoteClient
from bough.runtime.client.spawn import EngineProcess, spawn_engine
from bough.runtime.client.supervisor import Supervisor
from bough.runtime.protocol.errors import (
    BoughError,
    EngineStartingError,
    EngineStoppedError,
    EngineStuckError,
)
from bough.runtime.protocol.program import Done, Text, Use
from bough.runtime.protocol.request import RequestOutput

from ..asking import config, program, request, tokens, wait_until
from ..programs.control_programs import UpperTool

Start = Callable[..., Supervisor]


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    clients: list[Supervisor] = []

    def begin(**settings: float) -> Supervisor:
        clients.append(Supervisor(config(folder), **settings))  # type: ignore[arg-type]
        return clients[-1]

    yield begin
    for client in clients:
        client.close()


def condition(client: EngineClient) -> str:
    try:
        client.check()
    except EngineStoppedError as error:
        return error.code
    return "ok"


def error_code(outputs: list[RequestOutput]) -> str:
    finish = outputs[-1].finish
    assert finish is not None
    return "" if finish.error is None else finish.error.code


def test_a_process_that_is_killed_is_started_again(start: Start) -> None:
    client = start()
    expected = tokens(list(client.stream(request(24))))
    first = client.process_id
    stream = client.stream(request(480))
    next(stream)
    os.kill(first, signal.SIGKILL)
    began = time.monotonic()
    assert error_code(list(stream)) in {"engine_dead", ""}  # it may have come to its end before
    assert time.monotonic() - began < 2.0
    wait_until(lambda: condition(client) == "engine_starting" or client.process_id != first, 5.0)
    wait_until(lambda: condition(client) == "ok", 60.0)
    assert client.alive and client.process_id != first
    assert tokens(list(client.stream(request(24)))) == expected
    stats = client.stats()
    assert (stats.up, stats.restarts_total) == (1, 1)


def test_a_stopped_process_is_seen_and_its_requests_end_with_their_time(start: Start) -> None:
    client = start(stuck_timeout_s=60.0)
    os.kill(client.process_id, signal.SIGSTOP)
    began = time.monotonic()
    outputs: list[BoughError] = []

    def ask(timeout_s: float) -> None:
        try:
            list(client.stream(request(480, timeout_s=timeout_s)))
        except BoughError as error:
            outputs.append(error)

    threads = [threading.Thread(target=ask, args=(timeout_s,)) for timeout_s in (1.0, 6.0)]
    for thread in threads:
        thread.start()
    wait_until(lambda: condition(client) == "engine_stuck", 10.0)
    assert time.monotonic() - began < 6.5  # 5 s, and the tick of a busy machine
    asked = time.monotonic()
    assert client.stats().up == 0
    assert time.monotonic() - asked < 0.5
    with pytest.raises(EngineStuckError, match="no progress for") as caught:
        list(client.stream(request(4)))
    assert caught.value.may_retry and 40.0 < (caught.value.retry_after_s or 0.0) < 60.0
    for thread in threads:
        thread.join(10.0)
    assert [error.code for error in outputs] == ["engine_stuck"] * 2
    os.kill(client.process_id, signal.SIGCONT)
    wait_until(lambda: condition(client) == "ok", 5.0)
    assert client.stats().restarts_total == 0
    assert error_code(list(client.stream(request(8)))) == ""


def test_a_process_that_stays_stuck_is_replaced(start: Start) -> None:
    client = start(stuck_timeout_s=5.0)
    first = client.process_id
    os.kill(first, signal.SIGSTOP)
    with pytest.raises(EngineStuckError) as caught:  # nothing had come before, so it is a refusal
        list(client.run(program()))
    assert not caught.value.may_retry  # it may be what the engine was stuck in
    wait_until(lambda: condition(client) == "ok", 60.0)
    assert client.process_id != first
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_one_that_ends_too_often_is_given_up(start: Start) -> None:
    client = start(restarts=1)
    os.kill(client.process_id, signal.SIGKILL)
    wait_until(lambda: client.stats().restarts_total == 1 and condition(client) == "ok", 60.0)
    os.kill(client.process_id, signal.SIGKILL)
    wait_until(lambda: not client.alive, 10.0)
    assert condition(client) == "engine_dead"
    with pytest.raises(EngineStoppedError) as caught:
        list(client.stream(request(4)))
    assert not isinstance(caught.value, EngineStartingError)
    assert client.stats().up == 0


def test_close_does_not_wait_for_one_that_loads(start: Start) -> None:
    client = start()
    os.kill(client.process_id, signal.SIGKILL)
    wait_until(lambda: client._loading is not None, 10.0)
    began = time.monotonic()
    client.close()
    assert time.monotonic() - began < 10.0
    assert not client.alive


def test_registered_tools_outlive_the_process(start: Start) -> None:
    client = start()
    client.register_tool(UpperTool())
    os.kill(client.process_id, signal.SIGKILL)
    wait_until(lambda: client.stats().restarts_total == 1 and condition(client) == "ok", 60.0)
    text = program(Text(0, ("say ",)), Use(0, "loud", "upper", (("text", ("hello",)),)))
    done = list(client.run(text))[-1]
    assert isinstance(done, Done) and done.texts[0] == "say HELLO!"


@pytest.mark.parametrize("failure", [RuntimeError("can't start new thread"), OSError("too many files")])
def test_an_attempt_that_fails_in_any_way_is_followed_by_another(
    failure: Exception, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = start()
    monkeypatch.setattr(supervisor, "PAUSES_S", (0.1, 1.0))
    failures, spawn = [failure] * 2, spawn_engine

    def fail() -> EngineProcess:
        if failures:
            raise failures.pop()
        return spawn()

    monkeypatch.setattr(remote, "spawn_engine", fail)
    began = time.monotonic()
    os.kill(client.process_id, signal.SIGKILL)
    wait_until(lambda: client.stats().restarts_total == 3 and condition(client) == "ok", 60.0)
    assert time.monotonic() - began > 1.1  # both pauses


@pytest.mark.parametrize("name", ["bough-writer", "bough-load-watch", "bough-reader"])
def test_a_thread_that_cannot_be_started_leaves_no_process(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = threading.Thread.start

    def fail(self: threading.Thread) -> None:
        if self.name == name:
            raise RuntimeError("can't start new thread")
        begin(self)

    spawned = spawn_engine()
    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(RuntimeError, match="new thread"):
        RemoteClient.launch(config(folder), None, spawned)
    assert spawned.process.poll() is not None


def test_one_that_can_no_longer_be_watched_ends(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    client = start()

    def fail(self: RemoteClient, limit_s: float) -> None:
        raise ValueError

    monkeypatch.setattr(RemoteClient, "watch", fail)
    wait_until(lambda: not client.alive, 5.0)
    assert condition(client) == "engine_dead"


def test_who_is_refused_while_it_starts_hears_when_it_will_be_there(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, spawn = start(), spawn_engine
    monkeypatch.setattr(supervisor, "PAUSES_S", (2.0,))
    load_s = client._client.load_s
    assert 0.1 < load_s < 60.0
    failures = [OSError()]

    def fail() -> EngineProcess:
        if failures:
            raise failures.pop()
        return spawn()

    monkeypatch.setattr(remote, "spawn_engine", fail)
    os.kill(client.process_id, signal.SIGKILL)
    wait_until(lambda: not failures, 10.0)
    time.sleep(0.3)
    with pytest.raises(EngineStartingError) as caught:
        client.check()
    told_s = caught.value.retry_after_s
    assert told_s is not None and load_s + 0.5 < told_s < load_s + 2.0
    wait_until(lambda: condition(client) == "ok", 60.0)
