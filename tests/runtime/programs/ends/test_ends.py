"""Programs end when their time is over, by their own client's leaving, and alone if carrying them out goes wrong."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bough.runtime.client.local import EngineLoop, LocalClient
from bough.runtime.client.remote import RemoteClient
from bough.runtime.engine.engine import Engine
from bough.runtime.programs import interpreter
from bough.runtime.programs.engine_machine import EngineMachine
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.protocol.errors import BoughError, RequestError
from bough.runtime.protocol.program import Done, Failed, Fork, Gen, Join, Program, Text, Use
from bough.runtime.tokenizer.tokenizer import LONG_TEXT

from ....support.engine_thread import EngineThread, engine_threads
from ....support.fakes import fake_engine
from ...asking import assert_nothing_left, program, request, wait_until
from ...tools.test_registry import Tool

__all__ = ["engine_threads"]

LONG = "x" * (LONG_TEXT + 1)


@pytest.fixture
def engine() -> Engine:
    return fake_engine()[0]


@pytest.fixture
def client(engine: Engine) -> Iterator[LocalClient]:
    made = LocalClient(EngineLoop(engine, EngineConfig()))
    yield made
    assert_nothing_left(made)
    made.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


def end(client: LocalClient | RemoteClient, asked: Program, tools: Any = None) -> tuple[str, float]:
    """Returns how it ended, and after how long."""
    began = time.monotonic()
    try:
        last = list(client.run(asked, tools))[-1]
    except BoughError as error:
        return error.code, time.monotonic() - began
    code = last.error.code if isinstance(last, Failed) else type(last).__name__
    return code, time.monotonic() - began


class Slow:
    """A tokenizer that takes its time for a long text."""

    def __init__(self, engine: Engine, seconds: float) -> None:
        self.tokenizer = engine.tokenizer
        self.seconds = seconds

    def encode(self, text: str) -> list[int]:
        time.sleep(self.seconds)
        return self.tokenizer.encode(text)


def slow_down(client: LocalClient, seconds: float) -> None:
    machine = client._loop._executor._machine
    assert isinstance(machine, EngineMachine) and machine._encodings is not None
    machine._encodings._tokenizer = Slow(client._loop.engine, seconds)  # type: ignore[assignment]


def test_time_is_over_while_texts_are_encoded(client: LocalClient, pool: ThreadPoolExecutor) -> None:
    slow_down(client, 1.5)
    asked = [program(Text(0, (f"{LONG}{number}",)), timeout_s=0.5) for number in range(3)]
    for code, seconds in pool.map(lambda each: end(client, each), asked):
        assert code == "generation_timeout" and 0.4 < seconds < 1.4
    assert end(client, program(Text(0, ("short",)), timeout_s=0.5))[0] == "Done"


def test_a_text_without_a_thread_ends_its_program_alone(client: LocalClient, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, left = threading.Thread.start, [1]

    def fail(self: threading.Thread) -> None:
        if self.name.startswith("bough-encode") and left:
            left.pop()
            raise RuntimeError("can't start new thread")
        begin(self)

    monkeypatch.setattr(threading.Thread, "start", fail)
    codes = [end(client, program(Text(0, (f"{LONG}{number}",)), timeout_s=20.0))[0] for number in range(3)]
    assert codes == ["engine_overloaded", *["context_length_exceeded"] * 2]


BUGS = {
    "the end of a value": "_done",
    "a turn": "_attempts",
    "the time limit of a tool": "_fail",
    "the end of its time": "check_time",
    "the start": "walk",
}
"""The method that has it, by where it shows."""


@pytest.mark.parametrize("at", BUGS)
def test_a_bug_in_the_interpreter_ends_that_program_alone(
    at: str,
    client: LocalClient,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    walker = client._loop._executor._interpreter
    name = BUGS[at]
    right, gate = getattr(walker, name), threading.Event()
    timeout_s = 0.6 if at == "the end of its time" else 20.0

    def wrong(*args: Any) -> Any:
        state = args[0].state if name == "_done" else args[0]
        if state.id == "wrong" and (name != "check_time" or time.monotonic() >= state.runs[0].deadline):
            raise ZeroDivisionError
        return right(*args)

    ops: tuple[Any, ...] = (Text(0, ("x",)), Gen(0, "g", request(8).sampling))
    tools = {}
    if at == "the time limit of a tool":
        ops = (Use(0, "u", "slow", (), timeout_s=0.3),)
        tools = {"slow": Tool("slow", lambda: str(gate.wait(10.0)))}
    if at == "the end of its time":
        slow_down(client, 1.0)
        ops = (Text(0, (LONG,)),)
    if at == "a turn":
        monkeypatch.setattr(interpreter, "MAX_SLICE_S", 1e-9)  # every walk is gone on with after a step
    other = pool.submit(end, client, program(Text(0, ("x",)), Gen(0, "g", request(400).sampling)))
    monkeypatch.setattr(walker, name, wrong)
    assert end(client, Program(id="wrong", ops=ops, timeout_s=timeout_s), tools)[0] == "internal_error"
    gate.set()
    assert other.result(timeout=20.0)[0] == "Done" and client.alive
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_who_is_refused_and_leaves_does_not_drop_the_program_of_that_id(
    kind: str, engine: Engine, pool: ThreadPoolExecutor, engine_threads: Callable[..., EngineThread]
) -> None:
    step = engine.step

    def slow_step() -> None:
        time.sleep(0.02)
        step()

    engine.step = slow_step  # type: ignore[method-assign]
    if kind == "local":
        client: LocalClient | RemoteClient = LocalClient(EngineLoop(engine, EngineConfig()))
    else:
        client = RemoteClient(engine_threads(lambda thread, writer: engine).spawned())
        client.load(EngineConfig())
    ops = (Text(0, ("x",)), Fork(0, (1,)), Gen(1, "g", request(60).sampling), Join(0, (1,)))
    asked = Program(id="one/p", ops=ops, keep=True)
    first = pool.submit(lambda: list(client.run(asked))[-1])
    wait_until(lambda: client.stats().running == 1)

    async def leave() -> None:
        events = client.arun(asked)
        heard = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.001)
        heard.cancel()
        with pytest.raises((asyncio.CancelledError, RequestError)):
            await heard

    asyncio.run(leave())
    assert isinstance(first.result(timeout=20.0), Done)
    assert client.stats().states == 1
    client.drop(asked.id)  # as its owner does
    wait_until(lambda: client.stats().states == 0)
    client.close()
