"""The end of a large program is told by and by, and in parts; the program can be dropped, or go on, meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bough.runtime.client.streams import with_whole_ends
from bough.runtime.programs import executor
from bough.runtime.protocol.program import Done, EndTexts, Fork, Join, Op, Program, ProgramEvent, RoleEnd, Text

from ..oracle import Heard
from ..tool_place import ToolPlace


@pytest.fixture
def place() -> Iterator[ToolPlace]:
    made = ToolPlace()
    yield made
    made.close()


def of_three(*, trace: bool = False) -> tuple[list[Op], dict[str, Any]]:
    """A program of three branches, the text of one of which nothing ever computes."""
    ops: list[Op] = [Text(0, ("x",)), Fork(0, (1, 2)), Text(1, ("y" * 99,)), Text(2, ("z",)), Join(0, (1, 2))]
    return ops, {"trace": trace}


@pytest.mark.parametrize("trace", [False, True])
def test_the_end_of_a_large_program_makes_way(place: ToolPlace, monkeypatch: pytest.MonkeyPatch, trace: bool) -> None:
    """A thousand branches of 18,000 characters held up the engine for 0.2 s, after each submission."""
    ops, how = of_three(trace=trace)
    at_once = place.run(ops, "small", **how)
    monkeypatch.setattr(executor, "TOLD_AT_ONCE", 0)
    monkeypatch.setattr(executor, "MAX_SLICE_S", 0.0)
    heard = Heard()
    place.executor.run(Program(id="large", ops=tuple(ops), **how), heard)
    turns_of_end = 0
    while not heard.over:
        state = place.executor._states.get("large")
        turns_of_end += state is not None and any(run.over for run in state.in_flight)
        place.next_call()()
    assert turns_of_end >= (6 if trace else 3)
    assert heard.done.texts == at_once.done.texts == {0: "x", 1: "x" + "y" * 99, 2: "xz"}
    assert heard.done.num_tokens == at_once.done.num_tokens
    assert len(heard.events) == len(at_once.events)
    assert place.executor.num_states == 0


def test_the_end_of_a_large_program_comes_in_parts(place: ToolPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty megabytes took 40 ms to be written as one message, and as long to be read."""
    monkeypatch.setattr(executor, "TOLD_CHARS", 50)
    told, heard = Heard(), Heard()
    whole = with_whole_ends(heard)

    def listen(event: ProgramEvent) -> None:
        told(event)
        whole(event)

    place.executor.run(Program(id="p", ops=tuple(of_three()[0])), listen)
    place.drive(lambda: heard.over)
    events = told.events
    parts = [event.texts for event in events if isinstance(event, EndTexts)]
    assert parts == [{0: "x", 1: "x" + "y" * 99}]
    assert isinstance(events[-1], Done) and events[-1].texts == {2: "xz"}
    assert heard.done.texts == {0: "x", 1: "x" + "y" * 99, 2: "xz"}
    assert heard.done.num_tokens.keys() == {0, 1, 2}
    assert not any(isinstance(event, EndTexts) for event in heard.events)


def ending(place: ToolPlace, monkeypatch: pytest.MonkeyPatch, **how: Any) -> Heard:
    """A program whose instructions are done, and whose end has not been told."""
    monkeypatch.setattr(executor, "TOLD_AT_ONCE", 0)
    monkeypatch.setattr(executor, "MAX_SLICE_S", 0.0)
    heard = place.start(of_three()[0], **how)
    state = place.executor._states["p"]
    while not any(run.over for run in state.in_flight):
        place.next_call()()
    assert not heard.over
    return heard


def test_a_program_is_dropped_while_its_end_is_told(place: ToolPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = ending(place, monkeypatch, key="mine")
    place.executor.drop("p", "another's")
    assert not heard.over
    place.executor.drop("p", "mine")
    assert heard.failed.error.code == "aborted"
    while place.has_calls:
        place.next_call()()
    assert len(heard.events) == 1 and place.executor.num_states == 0


def test_a_program_goes_on_while_its_end_is_told(place: ToolPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not idle, so that nothing drops it, and another submission finds it."""
    first = ending(place, monkeypatch, keep=True)
    place.executor._max_states = 0
    place.executor._trim(place.clock())
    after = place.start([Text(0, ("!",))], resume=True)
    place.drive(lambda: first.over and after.over)
    assert first.done.texts[1] == "x" + "y" * 99
    assert after.done.texts[0] == "x!"
    assert place.executor.num_states == 0


def test_a_program_that_fails_while_an_end_is_told_tells_both(
    place: ToolPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ending(place, monkeypatch, keep=True)
    after = place.start([RoleEnd(0)], resume=True)
    place.drive(lambda: first.over and after.over)
    assert after.failed.error.code == first.failed.error.code == "invalid_value"
    assert after.failed.index == 0 and first.failed.index is None
