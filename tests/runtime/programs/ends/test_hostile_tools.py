"""Turns with tools that ask for far more than they say."""

from __future__ import annotations

import json
import threading
from typing import Any

import msgspec
import pytest

from bough.runtime.programs import costs, engine_machine
from bough.runtime.programs.costs import MAX_SLICE_WORK
from bough.runtime.programs.tokens import content_of
from bough.runtime.programs.tool_turns import write_tools
from bough.runtime.programs.tool_uses import ToolUses
from bough.runtime.protocol.condition import Either, Ref
from bough.runtime.protocol.program import (
    Assign,
    CallTools,
    Cancel,
    Fork,
    Gen,
    Join,
    Offer,
    Op,
    Repeat,
    RoleBegin,
    RoleEnd,
    Text,
    Use,
)
from bough.runtime.tokenizer.chat_template import Turn
from bough.runtime.tokenizer.tokenizer import LONG_TEXT, Tokenizer
from bough.runtime.tools.calls import MAX_TURN_CALLS, MAX_TURN_CHARS
from bough.runtime.tools.forms import PLAIN
from bough.runtime.tools.tag_reader import TagReader

from ..place import GREEDY, bound
from ..tool_place import ToolPlace
from .attack import Attack, count_calls


class Talkative:
    """A tool that says much."""

    name = "talk"
    timeout_s = None
    max_chars = 1 << 20
    parameters = None
    description = ""

    def __init__(self, num_chars: int) -> None:
        self.num_chars = num_chars

    def call(self, arguments: dict[str, Any]) -> str:
        return "x" * self.num_chars


def turn_of(text: str, *tools: str) -> list[Op]:
    """A turn in which the model has written `text`."""
    return [RoleBegin(0, "assistant"), Assign(0, "a", (text,)), CallTools(0, "a.calls", "a", tools or ("talk",))]


def test_a_text_that_is_too_long_is_not_read_for_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    place = ToolPlace(Talkative(1))
    pushed = count_calls(monkeypatch, TagReader, "push")
    error = place.refusal(turn_of("x" * (MAX_TURN_CHARS + 1)))
    assert (error.code, error.param) == ("invalid_value", "of")
    assert f"up to {MAX_TURN_CHARS} characters" in error.message and not pushed
    assert place.run(turn_of("x" * MAX_TURN_CHARS)).texts[0, "a.calls"] == "[]"
    place.close()


def test_reading_a_text_for_calls_makes_way() -> None:
    place = ToolPlace(Talkative(1))
    attack = Attack(place, turn_of(PLAIN.before * (MAX_TURN_CHARS // len(PLAIN.before) - 10) + PLAIN.write("talk", {})))
    (call,) = json.loads(attack.heard.texts[0, "a.calls"])
    assert call["result"] == "x"
    assert attack.num_goes >= MAX_TURN_CHARS // costs.ENCODED_PER_WORK // MAX_SLICE_WORK
    place.close()


def test_the_calls_of_a_turn_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    place = ToolPlace(Talkative(1))
    begun = count_calls(monkeypatch, ToolUses, "begin")
    error = place.refusal(turn_of(PLAIN.write("talk", {}) * (MAX_TURN_CALLS + 1)))
    assert (error.code, error.param) == ("invalid_value", "of")
    assert f"up to {MAX_TURN_CALLS} calls" in error.message and not begun
    place.close()


@pytest.mark.parametrize(
    "ops", [turn_of(PLAIN.write("talk", {}) * 4), [Text(0, ("x",)), Use(0, "u", "talk")]], ids=["turn", "use"]
)
def test_results_without_room_are_not_encoded(ops: list[Op], monkeypatch: pytest.MonkeyPatch) -> None:
    place = ToolPlace(Talkative(1 << 16))
    written = count_calls(monkeypatch, Tokenizer, "encode_pieces")
    encoded = count_calls(monkeypatch, Tokenizer, "encode")
    assert place.refusal(ops).code == "context_length_exceeded"
    assert not any(len(text) > LONG_TEXT for _, text in encoded)
    assert not written
    place.close()


@pytest.mark.parametrize(
    "ops", [turn_of(PLAIN.write("talk", {}) * 4), [Text(0, ("x",)), Use(0, "u", "talk")]], ids=["turn", "use"]
)
def test_long_results_are_encoded_beside_the_engine(ops: list[Op], monkeypatch: pytest.MonkeyPatch) -> None:
    place, threads = ToolPlace(Talkative(LONG_TEXT + 1)), list[threading.Thread]()
    encode = Tokenizer._encode

    def noted(self: Tokenizer, pieces: list[str | int], **options: bool) -> list[int]:
        if sum(len(piece) for piece in pieces if isinstance(piece, str)) > LONG_TEXT:
            threads.append(threading.current_thread())
        return encode(self, pieces, **options)

    monkeypatch.setattr(Tokenizer, "_encode", noted)
    place.machine._max_tokens = 1 << 20
    heard = place.run([*ops, Text(0, ("!",))], keep=True)
    assert heard.done.texts[0].count("x" * (LONG_TEXT + 1)) == (4 if len(ops) == 3 else 1)
    assert heard.done.texts[0].endswith("!")
    assert [thread is threading.current_thread() for thread in threads] == [False]
    content = content_of(place.executor._states["p"].branches[0])
    assert place.engine.tokenizer.decode(content.tokens[:], skip_special_tokens=False) == heard.done.texts[0]
    place.close()


def test_results_after_many_messages_are_rendered_beside_the_engine_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each message before them, where the turns that were rendered are forgotten."""
    place = ToolPlace(Talkative(1))
    chat, here, there = place.engine.tokenizer.chat, [0], [0]
    render = type(chat)._render

    def counted(*arguments: Any, **options: Any) -> str:
        (here if threading.current_thread() is threading.main_thread() else there)[0] += 1
        return render(*arguments, **options)

    many = [op for _ in range(40) for role in ("user", "assistant") for op in (RoleBegin(0, role), RoleEnd(0))]
    place.run([*many, *turn_of(PLAIN.write("talk", {}))[:-1]], keep=True)
    chat._start = Turn()
    monkeypatch.setattr(type(chat), "_render", counted)
    heard = place.run(turn_of("")[-1:], resume=True, keep=True)
    assert json.loads(heard.texts[0, "a.calls"])[0]["result"] == "x"
    assert here == [0] and 0 < there[0] < 10
    place.close()


def test_results_are_abandoned_with_their_branch() -> None:
    place = ToolPlace(Talkative(LONG_TEXT + 1))
    place.machine._max_tokens = 1 << 20
    ops: list[Op] = [Text(0, ("x",)), Fork(0, (1,)), Use(1, "u", "talk"), Join(0, (1,))]
    heard = place.start([*ops, Assign(0, "x", ("y",), tell=True)], "p", keep=True)
    place.posted.get(timeout=10.0)()  # it has returned, and is encoded
    place.start([Cancel(1)], "p", resume=True, keep=True)
    place.drive(lambda: heard.over)
    assert heard.done.texts[0] == "x"
    assert not any(branch.running for branch in place.executor._states["p"].branches.values())
    place.close()


@pytest.mark.parametrize("append", [True, False])
def test_results_are_charged(append: bool) -> None:
    place = ToolPlace(Talkative(6400))
    bound(place.machine, work=1000)
    body: tuple[Op, ...] = (Fork(0, (1,)), Use(1, "u", "talk", append=append), Join(0, (1,)))
    place.machine._max_tokens = 1 << 20
    attack = Attack(place, [Text(0, ("x",)), Repeat(0, body, Either(()), 100)])
    assert attack.code == "program_too_long"
    assert attack.state is not None and attack.state.work < 1000 + 6400 // costs.ENCODED_PER_WORK + MAX_SLICE_WORK
    place.close()


def test_results_of_a_turn_are_charged() -> None:
    place = ToolPlace(Talkative(6400))
    bound(place.machine, work=250)
    place.machine._max_tokens = 1 << 20
    assert place.refusal(turn_of(PLAIN.write("talk", {}) * 3)).code == "program_too_long"
    assert place.run(turn_of(PLAIN.write("talk", {}))).done
    place.close()


def test_arguments_of_calls_under_way_count_as_memory() -> None:
    """180 calls of one program held 700 MB that nobody counted."""
    gate = threading.Event()

    class Held(Talkative):
        def call(self, arguments: dict[str, Any]) -> str:
            assert gate.wait(20.0)
            return "done"

    place = ToolPlace(Held(1))
    place.machine._max_tokens = 1 << 20
    children = (1, 2, 3)
    long = Assign(0, "long", ("x" * 100_000,))
    uses = (Use(child, "u", "talk", (("text", (Ref(0, "long"),)),)) for child in children)
    heard = place.start([Text(0, ("x",)), long, Fork(0, children), *uses], "p")
    memory, tools = place.executor._memory, place.machine._tools
    assert tools is not None
    while len(tools.under_way) < 3:
        place.next_call()()
    assert memory.num_held >= 300_000 // costs.WAITING_CHARS_PER_TOKEN
    gate.set()
    place.drive(lambda: heard.over)
    assert heard.done and memory.num_held == 0
    place.close()


def test_many_tools_are_written_beside_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 tools of a kilobyte took 50 ms, in which nobody else went on."""
    threads = list[bool]()

    def noted(*args: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return write_tools(*args)

    monkeypatch.setattr(engine_machine, "write_tools", noted)
    few, many = Talkative(1), Talkative(1)
    many.name, many.description = "many", "d" * 600
    monkeypatch.setattr(engine_machine, "LONG_TEXT", 600)
    place = ToolPlace(few, many)
    place.machine._max_tokens = 1 << 20
    for tools in (("talk",), ("talk", "many")):
        ops: list[Op] = [RoleBegin(0, "user"), Text(0, ("x",)), RoleEnd(0), RoleBegin(0, "assistant")]
        gen = Gen(0, "g", GREEDY, offer=Offer(tools))
        heard = place.run(
            [*ops, Fork(0, (1,)), msgspec.structs.replace(gen, branch=1), Join(0, (1,)), gen], "-".join(tools)
        )
        assert heard.done, heard.failed
        assert heard.done.texts[0].count('"talk"') == heard.done.texts[1].count('"talk"') == 1
    assert threads == [True, True, False, False]
    place.close()
