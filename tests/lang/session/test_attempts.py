"""Values that are asked for again until they are right: what the model is told, and what the text goes on with."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel, field_validator

import bough
from bough import MockBackend, ProgramError, RequestError, assistant, function, gen, user
from bough.lang.compile.placeholder import CompileError
from bough.runtime.protocol.program import Gen, Join, Program, Text

from ..fakes import ops_of


class Adult(BaseModel):
    name: str
    age: int

    @field_validator("age")
    @classmethod
    def of_age(cls, age: int) -> int:
        if age < 18:
            raise ValueError("must be at least 18")
        return age


YOUNG, OLD = '{"name": "Ada", "age": 3}', '{"name": "Ada", "age": 36}'


def ask(s: Any) -> None:
    s += user("Who?")
    s += assistant("Here: " + gen("person", Adult, retries=2))
    s += user("Thanks.") + assistant(gen("end"))


def prompts(backend: MockBackend, body: Any, answers: dict[str, list[str]]) -> tuple[Any, list[str]]:
    """The state of a run, and the text before each answer."""
    seen: list[str] = []
    left = {name: list(texts) for name, texts in answers.items()}

    def answer(before: str, name: str) -> str | None:
        seen.append(before)
        texts = left.get(name.partition("#")[0], [])
        return texts.pop(0) if texts else None

    backend.answers = answer
    return function(body).run(backend=backend), seen


def test_the_model_sees_what_was_wrong_and_the_text_has_the_answer_alone() -> None:
    state, seen = prompts(MockBackend(), ask, {"person": [YOUNG, OLD]})
    assert state["person"] == Adult(name="Ada", age=36)
    assert YOUNG in seen[1] and "age: must be at least 18" in seen[1]
    assert seen[1].endswith("Here: ")
    assert seen[2].count("Ada") == 1 and "18" not in seen[2]
    assert [message["content"] for message in state.messages()] == ["Who?", f"Here: {OLD}", "Thanks.", "(end)"]
    assert YOUNG not in state.text()
    assert state.history("person") == [Adult(name="Ada", age=36)]


def test_the_first_answer_is_adopted_as_it_was_generated() -> None:
    backend = MockBackend({"person": OLD})
    state = function(ask).run(backend=backend)
    assert f"Here: {OLD}" in state.text()
    assert [op for op in ops_of(backend.requests[1]) if isinstance(op, Join)] == [Join(0, (1,), "append")]


def test_outside_of_a_message_the_line_is_begun_again() -> None:
    def body(s: Any) -> None:
        s += "Ages.\nAda: " + gen("age", int, retries=1, check=lambda age: age > 18) + "\nBob: " + gen("other", int)

    state, seen = prompts(MockBackend(), body, {"age": ["3", "36"], "other": ["40"]})
    assert seen[1].startswith("Ages.\nAda: 3\nThis is not right: ") and seen[1].endswith("\nAgain:\nAda: ")
    assert state.text() == "Ages.\nAda: 36\nBob: 40"


def test_after_the_last_attempt_the_program_fails_on_the_line() -> None:
    backend = MockBackend({"person": YOUNG})
    with pytest.raises(ProgramError, match="rejected in 3 attempts: age: must be at least 18") as caught:
        function(ask).run(backend=backend)
    assert caught.value.code == "invalid_output"
    assert caught.value.place is not None and caught.value.place.function == "ask"
    assert len(backend.requests) == 3


def test_attempts_of_branches_are_made_side_by_side() -> None:
    def body(s: Any) -> None:
        s += "x"
        branches = s.fork(3)
        for index, branch in enumerate(branches):
            branch += user(f"{index}?")
            branch += assistant(gen("v", Adult, retries=1))
        branches.join()

    backend = MockBackend({"v": [YOUNG, YOUNG, OLD, OLD, OLD]})
    state = function(body).run(backend=backend)
    assert [one.age for one in state["v"]] == [36, 36, 36]
    asked = [sum(isinstance(op, Gen) for op in request.ops) for request in backend.requests]
    assert asked[:2] == [3, 2]


def test_an_isolated_branch_fails_alone() -> None:
    def body(s: Any) -> None:
        s += "x"
        branches = s.fork(2, isolated=True)
        branches += ["A" + gen("v", Adult, retries=1), "B" + gen("v", Adult)]
        branches.join(errors="value")
        s += gen("after")

    backend = MockBackend(lambda before, name: YOUNG if before.startswith("xA") else OLD)
    first, second = function(body).run(backend=backend)["v"]
    assert (first.code, second.age) == ("invalid_output", 36)


def test_a_fork_of_an_isolated_branch_ends_with_it_alone() -> None:
    def body(s: Any) -> None:
        s += "x"
        branches = s.fork(2, isolated=True)
        branches += ["A", "B"]
        for branch in branches:
            inner = branch.fork(2)
            inner += [gen("v", Adult, retries=1), gen("w")]
            inner.join("append")
        branches.join(errors="value")
        s += gen("after")

    backend = MockBackend(lambda before, name: YOUNG if before.startswith("xA") else OLD)
    state = function(body).run(backend=backend)
    first, (second, *_) = state["v"]
    assert (first.code, second.age) == ("invalid_output", 36)
    assert state["after"] == OLD


@pytest.mark.parametrize(
    "read",
    [
        lambda s: s["v"],
        lambda s: (s.ref("v"), s["v"])[1],
        lambda s: s.values()["v"],
        lambda s: s.history("v")[-1],
        lambda s: json.loads("".join(s.stream("v"))) and s["v"],
        lambda s: s.get("v", Adult),
        lambda s: list(s.stream(Adult))[-1],
        lambda s: s.text().endswith(OLD) and s["v"],
        lambda s: s.sync() or s["v"],
    ],
)
def test_what_is_read_is_right(read: Any) -> None:
    def body(s: Any) -> Any:
        s += "x" + gen("v", Adult, retries=1)
        assert "v" in s
        return read(s)

    state = function(body).run(backend=MockBackend({"v": [YOUNG, OLD]}))
    assert state.ret_value == Adult(name="Ada", age=36)


def test_variable_of_a_scope_holds_the_answer() -> None:
    def body(s: Any) -> None:
        with s.var_scope("all"):
            s += "A: " + gen("v", Adult, retries=1) + "."
        s += gen("w", Adult, retries=1)

    state = function(body).run(backend=MockBackend({"v": [YOUNG, OLD], "w": OLD}))
    assert state["all"] == f"A: {OLD}."


def test_coroutines_wait_with_aget() -> None:
    async def body(s: Any) -> Any:
        s += user("Who?")
        s += assistant(gen("v", Adult, retries=1))
        found = await s.aget("v")
        s += user("Next?") + assistant(gen("w", Adult, retries=1))
        await s.asettle()
        s += user("And?") + assistant(gen("u", Adult, retries=1))
        return found.age

    backend = MockBackend({"v": [YOUNG, OLD], "w": [YOUNG, OLD], "u": [YOUNG, OLD]})
    state = asyncio.run(function(body).arun(backend=backend))
    assert (state.ret_value, state["w"].age, state["u"].age) == (36, 36, 36)


def test_a_coroutine_that_does_not_wait_is_told_to() -> None:
    async def body(s: Any) -> None:
        s += "x" + gen("v", Adult, retries=1)
        s += gen("w")

    with pytest.raises(ProgramError, match="aget"):
        asyncio.run(function(body).arun(backend=MockBackend({"v": OLD})))


@bough.tool
def lookup(text: str) -> str:
    return {"a": "known"}[text]


@pytest.mark.parametrize(
    ("check", "told"),
    [
        (lambda text: text != "b", "the check <lambda> refuses it"),
        (lookup, "'b'"),
        (lambda text: np.all(np.array([text]) != "b"), "the check <lambda> refuses it"),
    ],
)
def test_checks_of_users_and_tools(check: Any, told: str) -> None:
    def body(s: Any) -> None:
        s += "x" + gen("v", check=check, retries=1)

    state, seen = prompts(MockBackend(), body, {"v": ["b", "a"]})
    assert state["v"] == "a" and told in seen[1]


@pytest.mark.parametrize(
    ("check", "error"),
    [(lambda text: text.no_such_method(), AttributeError), (lambda text: {"a": 1}["nope"], KeyError)],
)
@pytest.mark.parametrize("retries", [None, 3])
def test_a_mistake_in_a_check_is_no_refusal(check: Any, error: Any, retries: int | None) -> None:
    def body(s: Any) -> Any:
        s += "x" + gen("v", check=check, retries=retries)
        return s["v"]

    backend = MockBackend()
    with pytest.raises(error, match=r"no_such_method|nope"):
        function(body).run(backend=backend)
    assert len(backend.requests) == 1


def test_without_retries_a_check_says_so_when_the_value_is_read() -> None:
    def body(s: Any) -> None:
        s += "x" + gen("v", check=lambda text: False)
        with pytest.raises(ProgramError, match="the check `<lambda>` refuses 'v'"):
            s["v"]

    assert function(body).run(backend=MockBackend()).error() is None


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: gen("v", retries=-1), "retries must be 0 to 16, got -1"),
        (lambda: gen("v", retries="2"), "retries must be a whole number"),  # type: ignore[call-overload]
        (lambda: gen("v", check=3), "check must be a function"),  # type: ignore[call-overload]
        (lambda: gen("v", check=asyncio.sleep), "check must be a plain function"),
        (lambda: gen("v", choices=["a"], retries=1), "retries is not for choices"),  # type: ignore[call-overload]
        (lambda: gen("v", retries=1), "give a type, or check=a function"),
        (lambda: gen("v", regex="a|b", retries=1), "give a type, or check=a function"),
        (lambda: bough.separate_reasoning(gen("v", int, retries=1)), "separate_reasoning"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        make()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (lambda s: s.__iadd__(bough.repeat_until(bough.var("v") == "a", gen("v", int, retries=1))), "repeat_until"),
        (lambda s: s.__iadd__("x" + gen("v", int, n=2, retries=1)), "leave out n"),
        (
            lambda s: s.fork(2, isolated=True, retries=1).__iadd__("x" + gen("v", int, retries=1)),
            "leave out one of the two",
        ),
        (
            lambda s: s.fork(1, isolated=True, retries=1)[0].fork(1).__iadd__("x" + gen("v", int, retries=1)),
            "leave out one of the two",
        ),
    ],
)
def test_where_nobody_could_check_it_is_refused(body: Any, said: str) -> None:
    with pytest.raises(ProgramError, match=said):
        function(body).run(backend=MockBackend())


@pytest.mark.parametrize("options", [{"retries": 1, "dtype": int}, {"check": bool}])
def test_a_compiled_program_holds_no_check(options: Any) -> None:
    with pytest.raises(CompileError, match="compiled program is data"):
        function(lambda s: s.__iadd__("x" + gen("v", **options))).compile()


def test_a_nested_program_is_recorded_with_its_attempts() -> None:
    @function
    def inner(s: Any) -> None:
        s += "A: " + gen("v", Adult, retries=1)

    def body(s: Any) -> int:
        call = inner()
        s += call
        s += "."
        return int(call["v"].age)

    state = function(body).run(backend=MockBackend({"v": [YOUNG, OLD]}))
    assert (state.ret_value, state.text()) == (36, f"A: {OLD}.")


def test_timelines_show_the_attempts() -> None:
    state = function(ask).run(backend=MockBackend({"person": [YOUNG, OLD]}), trace=True)
    timeline = state.timeline()
    assert "person refused, person#2" in timeline.text()
    assert "person refused" in timeline.html() and "age: must be at least 18" in timeline.html()
    assert [call.finish_reason for call in timeline.calls() if call.name == "person"] == ["refused"]


def test_references_to_the_answer_need_no_request() -> None:
    def body(s: Any) -> None:
        s += "x" + gen("v", Adult, retries=1)
        s += "Again: " + s.ref("v") + gen("w")

    backend = MockBackend({"v": [YOUNG, OLD]})
    assert f"Again: {OLD}" in function(body).run(backend=backend).text()
    last: Program = backend.requests[-1]
    assert any(isinstance(op, Text) and op.branch == 0 for op in last.ops)
