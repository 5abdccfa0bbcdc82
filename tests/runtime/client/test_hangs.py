"""An engine that hangs behind a heart that beats, and one that cannot be ended: whoever waits is told in time."""

from __future__ import annotations

import logging
import math
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from bough.runtime.client import remote
from bough.runtime.client.local import EngineLoop, LocalClient
from bough.runtime.client.messages import FrameWriter, Loading, Located
from bough.runtime.client.remote import RemoteClient
from bough.runtime.client.spawn import DUMP_SIGNAL
from bough.runtime.client.supervisor import Supervisor
from bough.runtime.engine.engine import Engine
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.protocol.errors import BoughError, EngineError, EngineStoppedError, ModelError, to_exception
from bough.runtime.protocol.program import Failed, Gen, Text
from bough.runtime.protocol.request import Request, RequestOutput

from ...support.engine_thread import EngineThread, Load, reads_tokenizer
from ...support.fakes import fake_engine, refuse_threads
from ..asking import program, request, wait_until

Make = Callable[..., EngineThread]


def _bad(pages: array[int]) -> None:
    raise AssertionError("a page was freed twice")


def loads(*engines: Engine) -> Load:
    made = iter(engines)
    return lambda thread, writer: next(made)


@pytest.fixture
def hanging() -> Iterator[threading.Event]:
    """Set at the end: until then things hang."""
    over = threading.Event()
    yield over
    over.set()


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> Callable[[EngineThread], None]:
    """Has the next process that is started be this one."""
    return lambda thread: monkeypatch.setattr(remote, "spawn_engine", thread.spawned)


def outcome(stream: Iterator[object]) -> BoughError | object:
    try:
        return list(stream)[-1]
    except BoughError as error:
        return error


def ask(client: RemoteClient | Supervisor | LocalClient, asked: Request) -> Future[BoughError | object]:
    return _POOL.submit(lambda: outcome(client.stream(asked)))


_POOL = ThreadPoolExecutor(16)


def failure(heard: BoughError | object) -> BoughError | None:
    if isinstance(heard, BoughError):
        return heard
    error = heard.error if isinstance(heard, Failed) else heard.finish.error  # type: ignore[attr-defined]
    return None if error is None else to_exception(error)


def code(heard: BoughError | object) -> str:
    error = failure(heard)
    return "" if error is None else error.code


def may_retry(heard: BoughError | object) -> bool:
    error = failure(heard)
    return error is not None and error.may_retry


# An engine whose end fails, or hangs


def test_death_is_told_although_the_end_meets_the_same_fault_again(caplog: pytest.LogCaptureFixture) -> None:
    engine, _ = fake_engine()
    deaths: list[int] = []
    client = LocalClient(EngineLoop(engine, EngineConfig(), on_death=lambda: deaths.append(1)))
    streams = [client.stream(request(1000, f"{index}" * 20)) for index in range(3)]
    events = client.run(program(Text(0, ("x",)), Gen(0, "g", request(1000).sampling)))
    for iterator in (*streams, events):
        next(iterator)
    client._loop._post(lambda: setattr(engine._scheduler.cache.pool, "free", _bad))
    client._loop.abort(next(iter(engine._live)))  # is told of its end, too
    client._loop._post(lambda: setattr(engine, "step", lambda: _bad(array("i"))))
    ends = [_POOL.submit(outcome, each) for each in (*streams, events)]
    assert sorted(code(each.result(timeout=5.0)) for each in ends) == ["", *["engine_dead"] * 3]  # one was aborted
    wait_until(lambda: deaths == [1])
    assert not client.alive and client._loop.step_began is None
    assert "the engine has died" in caplog.text


def test_an_end_that_hangs_is_stuck_and_killed(engine_threads: Make, hanging: threading.Event) -> None:
    engine, _ = fake_engine()
    thread = engine_threads(loads(engine))
    client = RemoteClient(thread.spawned())
    client.load(EngineConfig())
    engine.close = hanging.wait  # type: ignore[method-assign,assignment]
    waiting = [ask(client, request(1900, str(index), timeout_s=60.0)) for index in range(3)]
    wait_until(lambda: client.stats().running == 3)
    engine.step = lambda: _bad(array("i"))  # type: ignore[method-assign]
    began = time.monotonic()
    while client.alive:
        client.watch(4.0)
        assert time.monotonic() - began < 12.0
        time.sleep(0.5)
    assert {code(each.result(timeout=2.0)) for each in waiting} == {"engine_stuck"}
    assert thread.signals == [DUMP_SIGNAL] and thread.num_kills == 1


# A step that hangs


def test_a_step_that_hangs_behind_a_heart_that_beats_is_replaced(
    engine_threads: Make, replaced: Callable[[EngineThread], None], hanging: threading.Event
) -> None:
    """Streams that have begun, too; a request whose time is over first hears of it by then."""
    engine, other = fake_engine()[0], fake_engine()[0]
    thread = engine_threads(loads(engine))
    client = Supervisor(EngineConfig(), None, thread.spawned(), stuck_timeout_s=6.0)
    replaced(engine_threads(loads(other)))
    step, hangs = engine.step, threading.Event()

    def step_or_hang() -> None:
        if hangs.is_set():
            hanging.wait()
        time.sleep(0.005)
        step()

    engine.step = step_or_hang  # type: ignore[method-assign]
    begun = client.stream(request(1900, "begun", stream=True))
    next(begun)
    patient = [ask(client, request(1900, str(index), timeout_s=60.0)) for index in range(2)]
    hasty = ask(client, request(1900, "hasty", timeout_s=4.0))
    wait_until(lambda: client.stats().running == 4)
    hangs.set()
    began = time.monotonic()
    late = hasty.result(timeout=6.0)
    assert code(late) == "engine_stuck" and may_retry(late) and 3.0 < time.monotonic() - began < 6.0
    ended = _POOL.submit(outcome, begun)
    for each in (*patient, ended):
        heard = each.result(timeout=6.0)
        assert code(heard) == "engine_stuck" and not may_retry(heard)
    assert time.monotonic() - began < 9.0
    wait_until(lambda: client._ready and client.process_id != thread.pid, 5.0)
    assert code(outcome(client.stream(request(4)))) == ""
    client.close()


def test_a_process_that_no_signal_ends_is_left_behind(
    engine_threads: Make,
    replaced: Callable[[EngineThread], None],
    hanging: threading.Event,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote, "KILL_TIMEOUT_S", 1.0)
    engine, other = fake_engine()[0], fake_engine()[0]
    thread = engine_threads(loads(engine), survives=True)
    client = Supervisor(EngineConfig(), None, thread.spawned(), stuck_timeout_s=3.0)
    replaced(engine_threads(loads(other), survives=True))
    engine.step = hanging.wait  # type: ignore[method-assign,assignment]
    began = time.monotonic()
    waiting = [ask(client, request(1900, str(index), timeout_s=60.0)) for index in range(3)]
    with caplog.at_level(logging.ERROR):
        assert {code(each.result(timeout=8.0)) for each in waiting} == {"engine_stuck"}
        wait_until(lambda: client._ready and client.process_id != thread.pid, 10.0)
    lines = [record.getMessage() for record in caplog.records]
    assert sum("is killed" in line for line in lines) == 1
    assert sum("left behind" in line for line in lines) == 1
    assert client.stats().restarts_total == 1 and time.monotonic() - began < 15.0
    closing = time.monotonic()
    other.step = hanging.wait  # type: ignore[method-assign,assignment]
    stuck = ask(client, request())
    client.close()  # which SIGTERM leads to
    assert time.monotonic() - closing < 10.0
    assert code(stuck.result(timeout=1.0)) == "engine_dead"


def test_so_is_one_for_which_there_is_no_thread(
    engine_threads: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "KILL_TIMEOUT_S", 0.1)
    thread = engine_threads(loads(), survives=True)
    refuse_threads(monkeypatch, "bough-writer")
    with pytest.raises(RuntimeError, match="new thread"):
        RemoteClient(thread.spawned(serves=False))
    assert thread.num_kills == 1 and "left behind" in caplog.text


def test_a_request_that_ends_as_its_time_is_over_has_one_end(
    engine_threads: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = fake_engine()
    client = RemoteClient(engine_threads(loads(engine)).spawned())
    client.load(EngineConfig())
    heard: list[RequestOutput] = []
    over, calls = client._tools.over, []

    def at_the_same_time(key: int) -> None:
        """Looks for what is late while the end that has come is being told."""
        calls.append(key)
        if len(calls) == 1:
            client._expire(math.inf, EngineError("late", code="generation_timeout"))
        over(key)

    monkeypatch.setattr(client._tools, "over", at_the_same_time)
    client.start_request(request(4), heard.append)
    wait_until(lambda: bool(heard) and heard[-1].finish is not None)
    assert client.stats().running == 0  # all that was said has been heard
    assert sum(output.finish is not None for output in heard) == 1
    client.close()


def test_a_request_far_past_its_time_fails_although_the_engine_goes_on(
    engine_threads: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "LATE_S", 0.5)
    engine, _ = fake_engine()
    client = RemoteClient(engine_threads(loads(engine)).spawned())
    client.load(EngineConfig())
    monkeypatch.setattr(engine, "submit", lambda *args, **fields: 0)  # takes it, and forgets it
    lost = ask(client, request(4, timeout_s=0.5))
    began = time.monotonic()
    while not lost.done() and time.monotonic() - began < 5.0:
        client.watch(60.0)
        time.sleep(0.1)
    assert code(lost.result(timeout=0.0)) == "generation_timeout"
    assert 0.9 < time.monotonic() - began < 3.0 and client.alive
    client.close()


# A load that hangs


def test_a_load_that_hangs_behind_a_heart_that_beats_is_ended(engine_threads: Make, hanging: threading.Event) -> None:
    def load(thread: EngineThread, writer: FrameWriter) -> Engine:
        for done in range(4):  # a slow load that goes on is none that hangs
            time.sleep(1.0)
            writer.put(Loading("load", done, 4))
        hanging.wait()
        return fake_engine()[0]

    thread = engine_threads(load)
    began = time.monotonic()
    with pytest.raises(ModelError, match="made no progress for 3 s while it loaded"):
        RemoteClient(thread.spawned()).load(EngineConfig(), None, silence_s=30.0, stall_s=3.0)
    assert 7.0 < time.monotonic() - began < 12.0
    assert thread.signals == [DUMP_SIGNAL] and thread.returncode == -9


def test_a_restart_whose_loads_hang_ends_the_client(
    engine_threads: Make, hanging: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bough.runtime.client.supervisor.LOAD_STALL_S", 2.0)
    monkeypatch.setattr("bough.runtime.client.supervisor.LOAD_STALLS", 0.0)
    monkeypatch.setattr("bough.runtime.client.supervisor.PAUSES_S", (0.1,))

    def load(thread: EngineThread, writer: FrameWriter) -> Engine:
        hanging.wait()
        return fake_engine()[0]

    first = engine_threads(loads(fake_engine()[0]))
    client = Supervisor(EngineConfig(), None, first.spawned(), restarts=2)
    monkeypatch.setattr(remote, "spawn_engine", lambda: engine_threads(load).spawned())
    first.end(-11)
    wait_until(lambda: not client.alive, 15.0)
    with pytest.raises(EngineStoppedError):
        client.check()
    client.close()


def test_a_slow_tokenizer_of_the_client_is_not_the_engines_silence(
    engine_threads: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = fake_engine()

    def load(thread: EngineThread, writer: FrameWriter) -> Engine:
        writer.put(Located("x"))
        return engine

    def read() -> object:
        time.sleep(6.0)
        return engine.tokenizer

    reads_tokenizer(monkeypatch, read)  # type: ignore[arg-type]
    thread = engine_threads(load)
    client = RemoteClient(thread.spawned())
    client.load(EngineConfig(), None, silence_s=3.0)
    assert client.tokenizer is engine.tokenizer and thread.num_kills == 0
    client.close()


def test_a_tokenizer_that_cannot_be_read_ends_the_load_at_once(
    engine_threads: Make, hanging: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(thread: EngineThread, writer: FrameWriter) -> Engine:
        writer.put(Located("x"))
        hanging.wait()
        return fake_engine()[0]

    def read() -> object:
        raise ModelError("tokenizer.json is not JSON")

    reads_tokenizer(monkeypatch, read)  # type: ignore[arg-type]
    began = time.monotonic()
    with pytest.raises(ModelError, match="is not JSON"):
        RemoteClient(engine_threads(load).spawned()).load(EngineConfig())
    assert time.monotonic() - began < 5.0


# Crashes


@pytest.mark.parametrize("died", [False, True])
def test_what_runs_in_a_second_crash_must_not_be_sent_again(
    engine_threads: Make, monkeypatch: pytest.MonkeyPatch, *, died: bool
) -> None:
    """The process is killed, or its engine dies and says so."""
    engines = [fake_engine()[0] for _ in range(3)]
    threads = [engine_threads(loads(engine)) for engine in engines]
    client = Supervisor(EngineConfig(), None, threads[0].spawned())
    spare = iter(threads[1:])
    monkeypatch.setattr(remote, "spawn_engine", lambda: next(spare).spawned())
    retried = []
    for thread, engine in zip(threads[:2], engines, strict=False):
        wait_until(lambda: client._ready and client.process_id == thread.pid, 5.0)  # noqa: B023
        waiting = ask(client, request(1900))
        wait_until(lambda: client._client.stats().running == 1)
        if died:
            engine.step = lambda: _bad(array("i"))  # type: ignore[method-assign]
        else:
            thread.end(-11)
        crash = waiting.result(timeout=5.0)
        assert code(crash) == "engine_dead"
        retried.append(may_retry(crash))
    assert retried == [True, False]
    client.close()
