"""Tools are shared: who calls slow ones holds up himself, and neither other clients nor his other programs."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from bough.runtime.protocol.errors import ErrorInfo, OverloadedError
from bough.runtime.tools.quotas import Owner, Shares
from bough.runtime.tools.registry import Ticket, ToolRunner

from ..asking import wait_until
from .test_registry import Tool

HOG, OTHER, STRANGER = Owner("a", "hog"), Owner("a", "other"), Owner("b", "p")


class Gated:
    """A tool that does not return before `gate` is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.running = 0
        self.tool = Tool("slow", self._stay)

    def _stay(self) -> str:
        self.running += 1
        self.gate.wait(20.0)
        return "slow"


@pytest.fixture
def slow() -> Iterator[Gated]:
    made = Gated()
    yield made
    made.gate.set()


def start(runner: ToolRunner, tool: Tool, owner: Owner | None, count: int = 1) -> tuple[list[Ticket], list[object]]:
    found: list[object] = []
    done: Callable[[str | ErrorInfo], None] = found.append
    return [runner.start(tool, {}, done, owner) for _ in range(count)], found


def test_a_program_and_a_client_have_shares() -> None:
    shares = Shares(2, 3)
    assert shares.who_is_full(None) is None
    for owner in (HOG, HOG, None):
        shares.add(owner)
    assert (shares.who_is_full(HOG), shares.who_is_full(OTHER), shares.who_is_full(STRANGER)) == ("program", None, None)
    shares.add(OTHER)
    assert shares.who_is_full(OTHER) == "client"
    assert (shares.load(HOG), shares.load(OTHER), shares.load(STRANGER)) == ((3, 2), (3, 1), (0, 0))
    for owner in (HOG, HOG, OTHER, None):
        shares.remove(owner)
    assert shares.load(HOG) == (0, 0)
    assert Owner.of("alice/salt", "p") == Owner("alice", "p")


def test_slow_tools_leave_threads_to_other_programs_and_clients(slow: Gated) -> None:
    runner = ToolRunner(max_threads=8)
    start(runner, slow.tool, HOG, 100)
    wait_until(lambda: slow.running == 4)
    for owner in (OTHER, STRANGER):
        _, found = start(runner, Tool("quick", lambda: "quick"), owner)
        wait_until(lambda found=found: found == ["quick"], 2.0)  # type: ignore[misc]
    start(runner, slow.tool, OTHER, 100)
    wait_until(lambda: slow.running == 6)
    _, found = start(runner, Tool("quick", lambda: "quick"), STRANGER, 20)
    wait_until(lambda: found == ["quick"] * 20, 2.0)
    assert slow.running == 6
    slow.gate.set()
    wait_until(lambda: slow.running == 200)
    runner.close()


def note(order: list[str], name: str) -> Callable[[], str]:
    def run() -> str:
        order.append(name)
        return "ok"

    return run


def test_who_has_fewer_calls_on_threads_comes_first() -> None:
    """One thread: of those that wait, clients take turns, however many calls one of them has."""
    runner = ToolRunner(max_threads=1)
    order: list[str] = []
    gate = threading.Event()
    first = runner.start(Tool("slow", lambda: str(gate.wait(20.0))), {}, lambda _: None, None)
    wait_until(lambda: first.stage == "on a thread")
    for owner, count in ((HOG, 6), (STRANGER, 2), (OTHER, 2)):
        for _ in range(count):
            runner.start(Tool("t", note(order, owner.program)), {}, lambda _: None, owner)
    gate.set()
    wait_until(lambda: len(order) == 10)
    assert set(order[:3]) == {"hog", "p", "other"} == set(order[3:6])
    assert order[6:] == ["hog"] * 4
    runner.close()


def test_queues_are_shared(slow: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bough.runtime.tools.registry.MAX_WAITING", 8)
    runner = ToolRunner(max_threads=2)
    start(runner, slow.tool, HOG)
    wait_until(lambda: slow.running == 1)
    start(runner, slow.tool, HOG, 2)
    with pytest.raises(OverloadedError, match="too many tool calls of this program wait"):
        start(runner, slow.tool, HOG)
    for number in range(2):
        start(runner, slow.tool, Owner("a", f"{number}"), 2)
    with pytest.raises(OverloadedError, match="too many tool calls of this client wait"):
        start(runner, slow.tool, OTHER)
    tickets, found = start(runner, Tool("quick", lambda: "quick"), STRANGER)
    wait_until(lambda: found == ["quick"])
    slow.gate.set()
    wait_until(lambda: slow.running == 7)
    assert tickets[0].stage == "over"
    runner.close()


def test_calls_left_alone_count_for_who_left_them(slow: Gated) -> None:
    runner = ToolRunner(max_threads=4, max_abandoned=4)
    for number in range(4):
        (ticket,), _ = start(runner, slow.tool, HOG)
        wait_until(lambda number=number: slow.running == number + 1)  # type: ignore[misc]
        runner.abandon(ticket)
    with pytest.raises(OverloadedError, match="of this client, for which nobody waits"):
        start(runner, slow.tool, OTHER)
    _, found = start(runner, Tool("quick", lambda: "quick"), STRANGER)
    wait_until(lambda: found == ["quick"])
    slow.gate.set()
    wait_until(lambda: runner._left_alone.total == 0)
    _, found = start(runner, Tool("quick", lambda: "quick"), HOG)
    wait_until(lambda: found == ["quick"])
    runner.close()


def test_clients_whose_calls_never_return_leave_threads_to_others(slow: Gated) -> None:
    """Two of them had all places of calls that are left alone, and nobody could call any tool."""
    runner, messages = ToolRunner(max_threads=8, max_abandoned=8), list[str]()
    for client in ("a", "b", "c"):
        for number in range(20):
            owner, before = Owner(client, str(number)), slow.running
            try:
                (ticket,), _ = start(runner, slow.tool, owner)
            except OverloadedError as error:
                messages.append(error.message)
                break
            wait_until(lambda before=before: slow.running == before + 1)  # type: ignore[misc]
            runner.abandon(ticket)
        else:
            raise AssertionError("no bound")
    assert len(messages) == 3
    assert not any(char.isdigit() for char in "".join(messages))  # nobody hears what others do
    _, found = start(runner, Tool("quick", lambda: "quick"), Owner("d", "p"))
    wait_until(lambda: found == ["quick"])
    slow.gate.set()
    runner.close()


def test_a_call_that_waits_begins_when_one_of_its_program_is_left(slow: Gated) -> None:
    runner = ToolRunner(max_threads=2)
    (first,), _ = start(runner, slow.tool, HOG)
    wait_until(lambda: slow.running == 1)
    start(runner, Tool("quick", lambda: "quick"), STRANGER)  # leaves a thread that is idle
    _, found = start(runner, Tool("quick", lambda: "quick"), HOG)
    runner.abandon(first)
    wait_until(lambda: found == ["quick"])
    runner.close()


def test_what_is_awaited_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bough.runtime.tools.registry.MAX_ASYNC", 8)
    runner = ToolRunner()

    async def stay() -> str:
        await asyncio.sleep(20.0)
        return "late"

    tickets, _ = start(runner, Tool("stay", stay), HOG, 2)
    wait_until(lambda: runner._awaited.total == 2)
    with pytest.raises(OverloadedError, match="of this program wait"):
        start(runner, Tool("stay", stay), HOG)
    _, found = start(runner, Tool("quick", lambda: "quick"), OTHER)
    wait_until(lambda: found == ["quick"])
    for ticket in tickets:
        runner.abandon(ticket)
    wait_until(lambda: runner._awaited.total == 0)
    start(runner, Tool("quick", lambda: "quick"), HOG)
    runner.close()


def test_a_call_that_is_cancelled_before_it_is_awaited_is_closed() -> None:
    """Python warned that it was never awaited."""
    runner, gate, made = ToolRunner(), threading.Event(), list[Coroutine[Any, Any, str]]()

    async def hold() -> str:
        gate.wait(10.0)  # no other coroutine begins
        return "held"

    async def stay() -> str:
        await asyncio.sleep(20.0)
        return "late"

    def make() -> Coroutine[Any, Any, str]:
        made.append(stay())
        return made[-1]

    start(runner, Tool("hold", hold), OTHER)
    wait_until(lambda: runner._awaited.total == 1)
    start(runner, Tool("stay", make), HOG)
    wait_until(lambda: runner._awaited.total == 2)
    closing = threading.Thread(target=runner.close)
    closing.start()
    wait_until(lambda: runner._closed)
    gate.set()
    closing.join()
    wait_until(lambda: runner._awaited.total == 0)
    wait_until(lambda: inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED)
