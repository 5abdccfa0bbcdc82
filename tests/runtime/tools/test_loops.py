"""Coroutines of tools that block their event loop, and those of others beside them."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from bough.runtime.protocol.errors import ErrorInfo
from bough.runtime.tools import loops
from bough.runtime.tools.registry import ToolRunner

from ..asking import wait_until


@dataclass
class Tool:
    name: str
    function: Callable[[], Awaitable[str]]
    timeout_s: float | None = None
    max_chars: int = 100
    parameters: None = None

    def call(self, arguments: dict[str, Any]) -> Awaitable[str]:
        return self.function(**arguments)


async def quick() -> str:
    await asyncio.sleep(0)
    return "quick"


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The event that blocking coroutines wait for."""
    monkeypatch.setattr(loops, "BLOCKED_AFTER_S", 1.0)
    made = threading.Event()
    yield made
    made.set()


@pytest.fixture
def runner(gate: threading.Event) -> Iterator[ToolRunner]:
    made = ToolRunner()
    yield made
    gate.set()
    made.close()


def blocking(name: str, gate: threading.Event, began: threading.Event | None = None) -> Tool:
    async def block() -> str:
        if began is not None:
            began.set()
        return str(gate.wait(20.0))

    return Tool(name, block)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


def test_a_coroutine_that_blocks_leaves_later_calls_another_loop(
    runner: ToolRunner, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[str | ErrorInfo] = []
    began = threading.Event()
    abandoned = runner.start(blocking("blocks", gate, began), {}, found.append)
    assert began.wait(10.0)
    wait_until(lambda: abandoned.stage == "awaited")
    runner.abandon(abandoned)
    wait_until(lambda: runner.num_abandoned == 1)
    for number in range(3):
        runner.start(Tool("quick", quick), {}, found.append)
        wait_until(lambda: found == ["quick"] * (number + 1))  # noqa: B023
    assert len(errors(caplog)) == 1 and "'blocks'" in errors(caplog)[0] and "'quick'" not in errors(caplog)[0]
    gate.set()
    wait_until(lambda: runner.num_abandoned == 0)


def test_calls_on_a_blocked_loop_end_once_it_turns_and_it_is_used_again(
    runner: ToolRunner, gate: threading.Event
) -> None:
    async def where() -> str:
        return threading.current_thread().name + str(threading.get_ident())

    places: list[str | ErrorInfo] = []
    runner.start(Tool("where", where), {}, places.append)
    wait_until(lambda: len(places) == 1)
    found: list[str | ErrorInfo] = []
    runner.start(blocking("blocks", gate), {}, found.append)
    wait_until(lambda: runner.num_abandoned == 1)
    runner.start(Tool("where", where), {}, places.append)
    wait_until(lambda: len(places) == 2)
    gate.set()
    wait_until(lambda: found == ["True"] and runner.num_abandoned == 0)
    runner.start(Tool("where", where), {}, places.append)
    wait_until(lambda: len(places) == 3)
    assert places[0] == places[2] != places[1]


def test_a_loop_that_turns_while_calls_are_awaited_for_long_is_not_blocked(
    runner: ToolRunner, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[str | ErrorInfo] = []

    async def slow() -> str:
        await asyncio.sleep(2.5)
        return "slow"

    runner.start(Tool("slow", slow), {}, found.append)
    wait_until(lambda: found == ["slow"])
    assert errors(caplog) == [] and len(runner._loops._loops) == 1


def test_calls_fail_at_once_while_all_loops_are_blocked(
    runner: ToolRunner, gate: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loops, "MAX_LOOPS", 2)
    found: list[str | ErrorInfo] = []
    for number in range(2):
        runner.start(blocking(f"blocks{number}", gate), {}, lambda _: None)
        wait_until(lambda: runner.num_abandoned == number + 1)  # noqa: B023
    runner.start(Tool("quick", quick), {}, found.append)
    wait_until(lambda: len(found) == 1)
    assert isinstance(found[0], ErrorInfo) and "all 2 event loops of async tools are blocked" in found[0].message
    assert len(errors(caplog)) == 2
    gate.set()
    wait_until(lambda: runner.num_abandoned == 0)
    runner.start(Tool("quick", quick), {}, found.append)
    wait_until(lambda: found[1:] == ["quick"])


def test_a_loop_that_is_blocked_at_the_end_ends_once_it_turns(runner: ToolRunner, gate: threading.Event) -> None:
    runner.start(blocking("blocks", gate), {}, lambda _: None)
    wait_until(lambda: runner.num_abandoned == 1)
    before = set(threading.enumerate())
    runner.close()
    assert not gate.is_set()
    gate.set()
    wait_until(lambda: not any(thread.name.startswith("bough-async") and thread.is_alive() for thread in before))


def test_a_coroutine_that_stops_its_loop_does_not_end_it(runner: ToolRunner, caplog: pytest.LogCaptureFixture) -> None:
    async def stop() -> str:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)
        return "stopped"

    found: list[str | ErrorInfo] = []
    runner.start(Tool("stops", stop), {}, found.append)
    wait_until(lambda: found == ["stopped"])
    runner.start(Tool("quick", quick), {}, found.append)
    wait_until(lambda: found == ["stopped", "quick"])
    assert len(runner._loops._loops) == 1
    assert len(errors(caplog)) == 1 and "'stops'" in errors(caplog)[0]


def test_a_broken_loop_is_replaced(runner: ToolRunner, caplog: pytest.LogCaptureFixture) -> None:
    def fail(timeout: float | None) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    async def break_loop() -> str:
        asyncio.get_running_loop()._selector.select = fail  # type: ignore[attr-defined]
        await asyncio.sleep(60.0)
        return ""

    found: list[str | ErrorInfo] = []
    broken = runner.start(Tool("breaks", break_loop), {}, found.append)
    wait_until(lambda: bool(errors(caplog)))
    assert "'breaks'" in errors(caplog)[0]
    for number in range(loops.MAX_LOOPS + 1):
        runner.start(Tool("quick", quick), {}, found.append)
        wait_until(lambda: found == ["quick"] * (number + 1))  # noqa: B023
    assert len(runner._loops._loops) == 1
    runner.abandon(broken)
    wait_until(lambda: runner._awaited.total == 0)


def test_tasks_that_stop_the_loop_or_exit_as_it_ends_do_not_keep_it_open() -> None:
    async def stop() -> str:
        try:
            await asyncio.sleep(60.0)
        finally:
            asyncio.get_running_loop().stop()
        return ""

    async def leave() -> str:
        try:
            await asyncio.sleep(60.0)
        finally:
            raise SystemExit(3)

    for function in (stop, leave):
        made = ToolRunner()
        ticket = made.start(Tool("stays", function), {}, lambda _: None)
        wait_until(lambda: ticket.stage == "awaited")  # noqa: B023
        loop = made._loops._loops[0]
        made.close()
        wait_until(loop._loop.is_closed)
