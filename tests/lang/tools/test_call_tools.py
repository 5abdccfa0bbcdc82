"""Tools that the model calls by itself: what is offered, what comes of calls, how turns end, what is refused."""

from __future__ import annotations

import asyncio
import enum
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

import bough
from bough import ToolCall
from bough.runtime.protocol.program import CallTools, Gen, Value, walk

DEGREES = {"Vienna": 18, "Oslo": 7}


class Unit(enum.Enum):
    C = "C"
    F = "F"


@dataclass
class Place:
    name: str
    unit: Unit = Unit.C


def temperature(city: str) -> int:
    """The temperature in a city."""
    return DEGREES[city]


@bough.tool
async def measured(place: Place, days: int = 1) -> str:
    return f"{DEGREES[place.name]} {place.unit.value} for {days}"


def ask(*tools: Any, **options: Any) -> bough.Function[None]:
    def body(s: Any) -> None:
        s += bough.user("How warm is it?")
        s += bough.call_tools("answer", tools or (temperature,), **options)

    return bough.function(body)


def answering(*answers: object) -> bough.MockBackend:
    return bough.MockBackend({"answer": list(answers)})


VIENNA = ToolCall("temperature", {"city": "Vienna"})


def test_calls_are_made_and_the_model_goes_on_with_their_results() -> None:
    state = ask().run(backend=answering([VIENNA, ToolCall("temperature", {"city": "Oslo"})], "18 and 7"))
    assert state["answer"] == "18 and 7"
    assert [(call.arguments, call.result) for call in state.calls("answer")] == [
        ({"city": "Vienna"}, "18"),
        ({"city": "Oslo"}, "7"),
    ]
    assert state.values() == {"answer": "18 and 7"}
    roles = [(message["role"], message["content"]) for message in state.messages()]
    assert roles[2:] == [("tool", "18"), ("tool", "7"), ("assistant", "18 and 7")]


def test_without_calls_the_first_text_is_the_answer() -> None:
    backend = answering("I do not know")
    state = ask().run(backend=backend)
    assert (state["answer"], state.calls("answer")) == ("I do not know", [])
    assert len(backend.requests) == 1


def test_arguments_have_the_types_of_the_parameters() -> None:
    state = ask(measured).run(backend=answering(ToolCall("measured", {"place": {"name": "Oslo", "unit": "F"}}), "ok"))
    (call,) = state.calls("answer")
    assert call.arguments == {"place": Place("Oslo", Unit.F)}
    assert call.result == "7 F for 1"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (ToolCall("temperature", {"city": "Rome"}), "KeyError: 'Rome'"),
        (ToolCall("temperature", {"town": "Oslo"}), "it has no parameter 'town'; it has 'city'"),
        (ToolCall("temperature", {}), "the argument 'city' is missing"),
        (ToolCall("temperature", {"city": 5}), "the argument 'city' of tool 'temperature'"),
        (ToolCall("temperature", '{"city": "Os'), "its arguments are no JSON object"),
    ],
)
def test_what_is_wrong_with_a_call_is_told_to_the_model(call: ToolCall, said: str) -> None:
    state = ask().run(backend=answering(call, "sorry"))
    (made,) = state.calls("answer")
    assert made.result is None and made.error is not None and said in made.error
    assert state["answer"] == "sorry"
    assert state.messages()[2] == {"role": "tool", "content": f"Error: {made.error}"}


def test_the_last_turn_has_to_answer() -> None:
    backend = answering(VIENNA, VIENNA, "18")
    state = ask(max_turns=3).run(backend=backend)
    assert (state["answer"], len(state.calls("answer"))) == ("18", 2)
    with pytest.raises(bough.ProgramError, match="it may call none"):
        ask(max_turns=2).run(backend=answering(VIENNA, VIENNA, "18"))


def offers(program: bough.Function[None]) -> list[tuple[str, str]]:
    backend = bough.MockBackend()
    program.run(backend=backend)
    ops = [op for request in backend.requests for op in walk(request.ops)]
    return [(op.offer.choice, op.offer.only) for op in ops if isinstance(op, Gen) and op.offer is not None]


def test_the_first_turn_may_have_to_call() -> None:
    assert offers(ask(max_turns=4)) == [("auto", ""), ("none", "")]
    assert offers(ask(tool_choice="required")) == [("required", ""), ("auto", ""), ("none", "")]
    assert offers(ask(tool_choice="required", max_turns=2)) == [("required", ""), ("none", "")]
    assert offers(ask(tool_choice=temperature, max_turns=2)) == [("required", "temperature"), ("none", "")]
    assert offers(ask(tool_choice="temperature", max_turns=2)) == [("required", "temperature"), ("none", "")]
    assert offers(ask(tool_choice="none")) == offers(ask(max_turns=1)) == [("none", "")]
    state = ask(tool_choice="required", max_turns=2).run(backend=bough.MockBackend())
    assert [call.name for call in state.calls("answer")] == ["temperature"]


def test_calls_of_a_turn_run_side_by_side() -> None:
    both = threading.Barrier(2, timeout=10)

    def meet(name: str) -> str:
        both.wait()
        return name

    state = ask(meet).run(backend=answering([ToolCall("meet", {"name": "a"}), ToolCall("meet", {"name": "b"})], "met"))
    assert [call.result for call in state.calls("answer")] == ["a", "b"]


def test_an_answer_is_of_the_type_asked_for() -> None:
    state = ask(type=int).run(backend=answering(VIENNA, 18))
    assert state["answer"] == 18
    with pytest.raises(bough.ProgramError, match="does not match"):
        ask(type=int).run(backend=answering(VIENNA, "warm"))


def test_blocks_forks_and_tasks_have_tools_too() -> None:
    def body(s: Any) -> None:
        s += bough.user("How warm is it?")
        branches = s.fork(2)
        branches += bough.assistant("It is " + bough.gen("answer", tools=[temperature], max_turns=2) + ".")
        branches.join()
        s += bough.when(s.ref("answer", 0) == "18", bough.call_tools("again", [temperature]), "never")

    backend = bough.MockBackend({"answer": [VIENNA, VIENNA, "18", "18"], "again": "done"})
    state = asyncio.run(bough.function(body).arun(backend=backend))
    assert state.values() == {"answer": ["18", "18"], "again": "done"}
    assert state.calls("again") == []


def test_a_stream_tells_of_calls() -> None:
    with ask().stream(backend=answering(VIENNA, "18")) as events:
        values = [(event.name, event.text) for event in events if isinstance(event, Value)]
    assert [name for name, _ in values] == ["answer", "answer.calls", "answer", "answer.calls"]
    assert values[1][1] == '[{"name":"temperature","arguments":{"city":"Vienna"},"result":"18"}]'
    state = ask().run(backend=answering(VIENNA, "18"), stream=True)
    assert "".join(state.stream("answer")) == "18"


def test_a_compiled_program_calls_tools() -> None:
    program = ask(max_turns=3).compile()
    assert program.run(backend=answering(VIENNA, "18")) == {"answer": "18"}
    assert program.cost().tool_calls == 2
    assert "tools temperature, auto" in str(program)
    kinds = [type(op) for op in walk(program.template.ops)]
    assert CallTools in kinds


def test_a_timeline_shows_calls() -> None:
    state = ask().run(backend=answering(VIENNA, "18"), trace=True)
    assert [call.kind for call in state.timeline().calls()] == ["gen", "tool", "gen"]


def unannotated(city) -> str:
    return str(city)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ask(3), r"a tool is a function, a @bough.tool, or the name of one on the server; got 3 \(int\)"),
        (lambda: ask({"name": "f"}), "write a function for it, or bough.http_tool"),
        (lambda: ask("18 degrees"), "'18 degrees' is no tool's name: offer the function itself, not what it returns"),
        (lambda: ask(unannotated), "the parameter 'city' of tool 'unannotated' has no annotation"),
        (lambda: ask(temperature, bough.tool(name="temperature")(len_of)), "two tools are named 'temperature'"),
        (lambda: bough.gen("a", tools=[]), "tools is an empty list"),
        (lambda: bough.gen("a", tools=cast(Any, temperature)), r"write tools=\[temperature\]"),
        (lambda: ask(max_turns=0), "max_turns must be 1 to 64, got 0"),
        (lambda: ask(max_turns=1, tool_choice="required"), "2 turns at least"),
        (lambda: ask(tool_choice="always"), "tool_choice must be 'auto', 'required', 'none' or one of the tools"),
        (lambda: ask(parallel_tool_calls=2), "parallel_tool_calls must be True or False"),
        (lambda: bough.gen("a", max_turns=2), r"max_turns is about tools, and there are none: give tools=\[...\]"),
        (lambda: bough.gen(None, tools=[temperature]), "the answer needs a name"),
        (lambda: ask(choices=["a"]), "give Literal"),
        (lambda: ask(retries=2, type=int), "retries cannot be combined with tools"),
        (lambda: ask(n=2), "with tools there is one answer"),
    ],
)
def test_what_cannot_be_offered_is_refused_with_what_was_meant(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(bough.RequestError, match=said):
        make().run(backend=bough.MockBackend())


def len_of(text: str) -> int:
    return len(text)


@pytest.mark.parametrize("role", ["user", ""])
def test_tools_are_called_in_assistant_messages(role: str) -> None:
    def body(s: Any) -> None:
        expression = bough.gen("answer", tools=[temperature])
        s += getattr(bough, role)(expression) if role else expression

    with pytest.raises(
        bough.ProgramError, match=r"in an assistant message, not .*bough.call_tools\('answer', \[...\]\)"
    ):
        bough.function(body).run(backend=bough.MockBackend())


def test_a_tool_on_no_server_is_named() -> None:
    with pytest.raises(bough.ProgramError, match="there is no tool 'search'"):
        ask("search").run(backend=bough.OpenAI("m", base_url="http://127.0.0.1:9", api_key="k"))
