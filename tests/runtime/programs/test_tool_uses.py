"""Calls of tools beside an engine: what they bring is heard once, in time, on the engine's thread; what they take is
charged to their program."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bough.runtime.programs import costs
from bough.runtime.programs.costs import Budget
from bough.runtime.programs.state import CallId, Frame, Run, State, Step
from bough.runtime.programs.tokens import TokenContent
from bough.runtime.programs.tool_uses import ToolUses
from bough.runtime.programs.validate import Item
from bough.runtime.protocol.errors import ErrorInfo
from bough.runtime.protocol.program import Assign, Program, Ref, Text, Use
from bough.runtime.tools.registry import ToolRunner

from .place import Clock
from .tool_place import ToolPlace


class Gate:
    """A tool that returns once it may."""

    name = "gate"
    timeout_s = 2.0
    max_chars = 100
    parameters = None

    def __init__(self) -> None:
        self.open = threading.Event()

    def call(self, arguments: dict[str, Any]) -> str:
        assert self.open.wait(10)
        return str(arguments["text"])


class Calls:
    """A place for calls of one program, without an engine."""

    def __init__(self) -> None:
        self.clock, self.gate = Clock(), Gate()
        self.posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.runner = ToolRunner()
        self.uses = ToolUses(self.runner, self.posted.put, self.clock)
        self.state = State("p", "", self.clock(), TokenContent(), Budget())
        self.run = Run(Program(id="p", ops=()), lambda _: None, self.clock(), 1000)
        self.heard: list[str | ErrorInfo] = []

    def begin(self, timeout_s: float | None = None) -> CallId:
        step = Step(self.run, Item(0, Use(0, "v", "gate")))
        frame = Frame(self.state, self.state.branches[0], step, None)  # type: ignore[arg-type]
        before = set(self.state.branches[0].running)
        self.uses.begin(frame, self.gate, {"text": "a"}, timeout_s, self.heard.append)
        (call_id,) = self.state.branches[0].running - before
        assert isinstance(call_id, CallId)
        return call_id


@pytest.fixture
def calls() -> Iterator[Calls]:
    found = Calls()
    yield found
    found.gate.open.set()
    found.runner.close()


def test_what_a_call_brings_is_heard_where_it_is_posted(calls: Calls) -> None:
    calls.begin()
    calls.gate.open.set()
    deliver = calls.posted.get(timeout=10)
    assert calls.heard == []
    deliver()
    assert calls.heard == ["a"]
    assert not calls.state.branches[0].running
    assert calls.uses.sleep_s() is None


def test_a_call_that_is_late_fails_once(calls: Calls) -> None:
    calls.begin(timeout_s=0.5)
    calls.begin()
    assert calls.uses.sleep_s() == 0.5
    calls.clock.now += 0.5
    calls.uses.expire()
    assert [error.code for error in calls.heard if isinstance(error, ErrorInfo)] == ["tool_timeout"]
    assert calls.uses.sleep_s() == 1.5
    calls.gate.open.set()
    calls.posted.get(timeout=10)()
    assert calls.heard[1:] == ["a"]
    assert calls.posted.empty()


class Watched(dict[Any, Any]):
    """Counts how often all of its entries are gone through."""

    num_looks = 0

    def items(self) -> Any:
        self.num_looks += 1
        return super().items()

    def values(self) -> Any:
        self.num_looks += 1
        return super().values()


def test_calls_are_looked_at_once_one_is_late(calls: Calls) -> None:
    calls.uses.under_way = watched = Watched()
    first, *_ = (calls.begin(timeout_s=seconds) for seconds in (0.5, 1.0, 1.5))
    for _ in range(100):
        calls.uses.expire()
        assert calls.uses.sleep_s() == 0.5
    assert watched.num_looks == 0
    calls.uses.stop(first)
    calls.clock.now += 0.5
    calls.uses.expire()
    assert (calls.heard, calls.uses.sleep_s()) == ([], 0.5)
    calls.clock.now += 0.5
    calls.uses.expire()
    assert [error.code for error in calls.heard if isinstance(error, ErrorInfo)] == ["tool_timeout"]
    assert len(watched) == 1 and calls.uses.sleep_s() == 0.5


def test_a_call_that_was_stopped_is_not_heard(calls: Calls) -> None:
    call_id = calls.begin()
    assert calls.uses.stop(call_id)
    assert not calls.uses.stop(call_id)
    calls.gate.open.set()
    assert calls.heard == [] and calls.uses.sleep_s() is None


@pytest.fixture
def place() -> Iterator[ToolPlace]:
    made = ToolPlace()
    yield made
    made.close()


def test_arguments_are_charged_by_their_length(place: ToolPlace) -> None:
    argument = ("text", (Ref(0, "x"),) * 5)
    place.run([Assign(0, "x", ("a" * 200_000,)), Use(0, "u", "upper", (argument,), append=False)], keep=True)
    assert place.executor._states["p"].work >= 1_000_000 // costs.COPIED_PER_WORK


def test_values_of_tools_are_counted(place: ToolPlace) -> None:
    place.run([Text(0, ("x",)), *(Use(0, f"u{index}", "upper", (("text", ("y",)),)) for index in range(20))], keep=True)
    state = place.executor._states["p"]
    assert state.account.num_held >= costs.BRANCH_TOKENS + 20 * (costs.VALUE_TOKENS + 2 * len("Y!"))
