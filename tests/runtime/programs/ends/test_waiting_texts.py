"""Texts that wait to be encoded: counted, forgotten with their programs, and taken in turns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bough.runtime.programs import costs
from bough.runtime.protocol.program import Fork, Gen, Op, Text
from bough.runtime.tokenizer.tokenizer import LONG_TEXT, Tokenizer

from ..oracle import Heard
from ..place import GREEDY, bound
from ..tool_place import ToolPlace


@pytest.fixture
def place() -> Iterator[ToolPlace]:
    made = ToolPlace()
    yield made
    made.close()


def waiting_texts(place: ToolPlace, number: int, gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> list[Heard]:
    """Programs of as many branches each, whose texts wait for one that is held up by `gate`."""
    encode = Tokenizer.encode

    def held(self: Tokenizer, text: str, **options: bool) -> list[int]:
        if text.startswith("held"):
            assert gate.wait(20.0)
        return encode(self, text, **options)

    place.machine._max_tokens = 1 << 20
    monkeypatch.setattr(Tokenizer, "encode", held)
    place.start([Text(0, ("held" + "x" * LONG_TEXT,))], "first", namespace="flood")
    children = tuple(range(1, number + 1))
    ops: list[Op] = [Text(0, ("x",)), Fork(0, children), *(Text(child, ("y" * LONG_TEXT + "y",)) for child in children)]
    return [place.start(ops, f"p{index}", namespace="flood") for index in range(number)]


def settle(place: ToolPlace) -> None:
    while place.turns:
        place.turns.popleft()()


def test_texts_that_wait_count_as_memory(place: ToolPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six programs held a quarter of a gigabyte that nobody counted."""
    gate = threading.Event()
    heard = waiting_texts(place, 5, gate, monkeypatch)
    settle(place)
    memory = place.executor._memory
    assert memory.held("flood") >= 25 * LONG_TEXT // costs.WAITING_CHARS_PER_TOKEN
    gate.set()
    place.drive(lambda: all(each.over for each in heard))
    assert all(each.done for each in heard)
    assert memory.num_held == 0


def test_texts_without_room_are_refused(place: ToolPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    bound(place.machine, held_tokens=20_000)
    gate = threading.Event()
    heard = waiting_texts(place, 5, gate, monkeypatch)
    settle(place)
    gate.set()
    place.drive(lambda: all(each.over for each in heard))
    assert {each.failed.error.code for each in heard if each.events} == {"engine_overloaded"}
    assert place.executor._memory.num_held == 0


def test_texts_of_programs_that_were_dropped_do_not_wait(place: ToolPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred dropped programs held up the engine for five seconds, since each text was looked for among all."""
    gate = threading.Event()
    waiting_texts(place, 5, gate, monkeypatch)
    settle(place)
    encodings = place.machine._encodings
    assert encodings is not None and sum(map(len, encodings._waiting.values())) == 25
    for index in range(5):
        place.executor.drop(f"p{index}")
    assert not encodings._waiting and len(encodings._under_way) == 1
    gate.set()
    place.executor.drop("first")
    assert place.executor._memory.num_held == 0
    place.posted.get(timeout=10.0)()
    assert not encodings._programs._turns._shares


def test_programs_of_a_key_take_turns_at_long_texts(place: ToolPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, order = threading.Event(), list[str]()
    waiting_texts(place, 3, gate, monkeypatch)
    settle(place)
    encodings = place.machine._encodings
    assert encodings is not None
    start = encodings._start

    def noted(tenant: str, writing: Any) -> None:
        order.append(writing.frame.state.id)
        start(tenant, writing)

    monkeypatch.setattr(encodings, "_start", noted)
    gate.set()
    place.drive(lambda: len(order) == 9)
    assert order == ["p0", "p1", "p2"] * 3


def test_calls_of_two_programs_are_told_apart(place: ToolPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of one and the request of another had the same id, so that dropping this one ended neither."""
    gate = threading.Event()
    encode = Tokenizer.encode

    def held(self: Tokenizer, text: str, **options: bool) -> list[int]:
        assert len(text) <= LONG_TEXT or gate.wait(20.0)
        return encode(self, text, **options)

    place.machine._max_tokens = 1 << 20
    monkeypatch.setattr(Tokenizer, "encode", held)
    long = place.start([Text(0, ("x" * LONG_TEXT + "x",))], "p")
    other = place.start([Text(0, ("x",)), Gen(0, "g", GREEDY)], "p/text")
    settle(place)
    assert place.engine.stats().waiting + place.engine.stats().running == 1
    place.executor.drop("p/text")
    assert other.failed.error.code == "aborted"
    assert place.engine.idle
    gate.set()
    place.drive(lambda: long.over)
    assert long.done
