"""The state of a program that has failed can be read: all that had come by then."""

from __future__ import annotations

from typing import Any

import pytest

from bough import MockBackend, ProgramError, assistant, function, gen, repeat_until, use, user, var
from bough.lang.state.state import State


def failed(body: Any, **answers: Any) -> State[Any]:
    with pytest.raises(ProgramError) as caught:
        function(body).run(backend=MockBackend(answers))
    state: State[Any] = caught.value.state
    assert state.error() is caught.value
    return state


def plain(s: Any) -> None:
    s += "T" + gen("a")
    s["own"] = 5
    s += "." + gen("b", int)
    s += "after" + gen("c")


def test_text_and_values() -> None:
    state = failed(plain, a="A", b="no number")
    assert (state.text(), state.values()) == ("TA.", {"a": "A", "own": 5})
    assert (state.history("a"), state.history("c")) == (["A"], [])
    assert (state["a"], "c" in state) == ("A", True)
    assert state.get_meta_info("a")["finish_reason"]["type"] == "stop"
    assert state.usage.completion_tokens == 1
    for name in ("b", "c"):
        with pytest.raises(ProgramError, match="no number") as caught:
            state[name]
        assert caught.value is state.error()
    with pytest.raises(ProgramError, match="no number"):
        state.sync()


def test_messages() -> None:
    def chat(s: Any) -> None:
        s += user("Hi") + assistant(gen("a"))
        s += user("more" + use("t", "no_tool_of_that_name"))

    state = failed(chat, a="A")
    assert state.messages() == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": ""},
    ]  # the program was refused as a whole

    def read(s: Any) -> None:
        s += user("Hi") + assistant(gen("a"))
        assert s["a"] == "A"
        s += user("more" + gen("b", int))

    state = failed(read, a="A", b="x")
    assert [message["content"] for message in state.messages()] == ["Hi", "A", "more"]
    assert state.text() == "HiAmore"


def test_branches_and_blocks() -> None:
    def branches(s: Any) -> None:
        s += "S"
        group = s.fork(2)
        group += "x" + gen("a")
        group.join("append")
        s += repeat_until(var("n") == "9", gen("n", int) + ",", at_most=3)

    state = failed(branches, a=["1", "2"], n=["5", "x"])
    assert state.values() == {"a": ["1", "2"]}  # what the loop would have ended with is not known
    assert state.text() == "Sx1x25,"
    assert state.history("n") == [5]
    assert state.history("a") == [["1", "2"]]


def test_what_a_body_raises_itself() -> None:
    def body(s: Any) -> None:
        s += "T" + gen("a")
        assert s["a"] == "A"
        s += gen("b")
        raise LookupError("mine")

    states = function(body).run_batch([{}], backend=MockBackend({"a": "A"}))
    assert isinstance(states[0].error(), LookupError)
    assert (states[0].values(), states[0].text()) == ({"a": "A"}, "TA")
    with pytest.raises(ProgramError, match="LookupError: mine"):
        states[0]["b"]


def test_in_the_body_itself_nothing_is_left_out() -> None:
    def body(s: Any) -> None:
        s += gen("a") + gen("b", int)
        with pytest.raises(ProgramError):
            s["b"]
        for read in (s.values, s.text):
            with pytest.raises(ProgramError, match="no number"):
                read()
        raise LookupError

    with pytest.raises(LookupError):
        function(body).run(backend=MockBackend({"b": "no number"}))


def test_a_value_that_cannot_be_read_is_no_failure_of_the_program() -> None:
    state = function(lambda s: s.__iadd__(gen("a", int, regex="[a-z]+"))).run(backend=MockBackend({"a": "abc"}))
    assert state.error() is None
    with pytest.raises(ProgramError, match="not of the type"):
        state.values()
