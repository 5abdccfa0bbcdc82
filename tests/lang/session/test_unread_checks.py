"""Values that nobody reads are checked at the end of the run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import bough
from bough import MockBackend, ProgramError, call_tools, function, gen, repeat_until, times, when

from ..fakes import ops_of


def no_bad(text: str) -> None:
    if text.startswith("bad"):
        raise ValueError(f"{text} is bad")


@function
def unread(s: Any) -> str:
    s += "x" + gen("v", check=no_bad)
    return "done"


def test_a_refused_value_fails_the_run_though_nobody_reads_it() -> None:
    backend = MockBackend({"v": "bad"})
    with pytest.raises(ProgramError, match="the check `no_bad` refuses 'v': bad is bad") as caught:
        unread.run(backend=backend)
    assert caught.value.code == "invalid_output"
    assert caught.value.place is not None and caught.value.place.function == "unread"
    assert caught.value.state is not None and caught.value.state.text() == "xbad"
    assert len(backend.requests) == 1
    assert unread.run(backend=MockBackend({"v": "good"})).ret_value == "done"


def test_on_an_event_loop_and_in_batches() -> None:
    with pytest.raises(ProgramError, match="refuses 'v'"):
        asyncio.run(unread.arun(backend=MockBackend({"v": "bad"})))
    states = unread.run_batch([{}] * 3, backend=MockBackend({"v": ["good", "bad", "good"]}))
    assert [state.error() is None for state in states] == [True, False, True]


def test_who_looks_on_hears_of_it() -> None:
    state = unread.run(backend=MockBackend({"v": "bad"}), stream=True)
    error = state.error()
    assert isinstance(error, ProgramError) and error.code == "invalid_output"
    with pytest.raises(ProgramError, match="refuses 'v'"):
        _ = state.ret_value


def test_a_program_that_has_caught_the_refusal_goes_on() -> None:
    @function
    def catches(s: Any) -> Any:
        for _ in range(3):
            s += "x" + gen("v", check=no_bad)
            try:
                return s["v"]
            except ProgramError:
                s += " (no) "
        return None

    state = catches.run(backend=MockBackend({"v": ["bad", "bad", "good"]}))
    assert (state.ret_value, state.text()) == ("good", "xbad (no) xbad (no) xgood")


def test_every_value_of_a_name_is_checked_and_every_sample() -> None:
    with pytest.raises(ProgramError, match="refuses 'v'"):
        function(lambda s: s.__iadd__("x" + gen("v", check=no_bad) + gen("v", check=no_bad))).run(
            backend=MockBackend({"v": ["bad", "good"]})
        )
    with pytest.raises(ProgramError, match="refuses 'v'"):
        function(lambda s: s.__iadd__("x" + gen("v", n=2, check=no_bad))).run(
            backend=MockBackend({"v": ["good", "bad"]})
        )


def test_a_branch_fails_the_run_unless_it_may_fail_alone() -> None:
    @function
    def forks(s: Any, isolated: bool) -> None:
        s += "x"
        branches = s.fork(2, isolated=isolated)
        for branch in branches:
            (inner,) = branch.fork(1)
            inner += gen("v", check=no_bad)
        branches.join()

    with pytest.raises(ProgramError, match="refuses 'v'"):
        forks.run(False, backend=MockBackend({"v": ["good", "bad"]}))
    assert forks.run(True, backend=MockBackend({"v": ["good", "bad"]})).error() is None


def test_a_branch_that_was_cancelled_fails_nothing() -> None:
    @function
    def cancels(s: Any) -> str:
        s += "x"
        first, second = s.fork(2)
        first += gen("v", check=no_bad)
        second += gen("w")
        found = str(second["w"])
        first.cancel()
        return found

    assert cancels.run(backend=MockBackend({"v": "bad"})).ret_value == "(w)"


def test_of_a_loop_the_value_that_is_left_counts() -> None:
    @function
    def loops(s: Any) -> None:
        s += repeat_until(times("v") == 2, "x" + gen("v", check=no_bad))

    with pytest.raises(ProgramError, match="refuses 'v'"):
        loops.run(backend=MockBackend({"v": ["good", "bad"]}))
    assert loops.run(backend=MockBackend({"v": ["bad", "good"]})).text() == "xbadxgood"


def test_of_a_block_that_did_not_run_there_is_nothing_to_check() -> None:
    @function
    def chooses(s: Any) -> None:
        s += "x" + gen("a")
        s += when(s.ref("a") == "yes", gen("v", check=no_bad), gen("v"))

    assert chooses.run(backend=MockBackend({"a": "no", "v": "bad"})).text() == "xnobad"
    with pytest.raises(ProgramError, match="refuses 'v'"):
        chooses.run(backend=MockBackend({"a": "yes", "v": "bad"}))


def test_of_a_generation_with_tools_the_answer_is_checked() -> None:
    def look() -> str:
        """Looks."""
        return "seen"

    @function
    def calls(s: Any, max_turns: int) -> None:
        s += bough.user("Look.") + call_tools("v", [look], check=no_calls, max_turns=max_turns)

    def no_calls(text: str) -> bool:
        return text == "good"

    call = bough.ToolCall("look", {})
    for max_turns in (2, 4):
        assert calls.run(max_turns, backend=MockBackend({"v": [call, "good"]})).error() is None
        with pytest.raises(ProgramError, match="refuses 'v'"):
            calls.run(max_turns, backend=MockBackend({"v": [call, "odd"]}))


def test_reasoning_is_no_part_of_what_is_checked() -> None:
    @function
    def thinks(s: Any) -> None:
        s += "x" + bough.separate_reasoning(gen("v", check=no_bad))

    @function
    def thinks_in_a_block(s: Any) -> None:
        s += "x" + gen("a")
        s += when(s.ref("a") == "yes", bough.separate_reasoning(gen("v", check=no_bad)))

    assert thinks.run(backend=MockBackend({"v": "<think>bad</think>good"})).error() is None
    with pytest.raises(ProgramError, match="refuses 'v'"):
        thinks_in_a_block.run(backend=MockBackend({"a": "yes", "v": "<think>good</think>bad"}))
    with pytest.raises(ProgramError, match="refuses 'v'"):
        thinks.run(backend=MockBackend({"v": "<think>good</think>bad"}))


def test_a_mistake_in_a_check_stops_the_program() -> None:
    with pytest.raises(ZeroDivisionError):
        function(lambda s: s.__iadd__("x" + gen("v", check=lambda text: 1 / 0))).run(backend=MockBackend())


def test_a_check_may_run_a_program_wherever_the_run_is() -> None:
    backend = MockBackend({"verdict": "no"})

    @function
    def judge(s: Any, text: str) -> None:
        s += text + gen("verdict")

    @function
    def judged(s: Any) -> None:
        s += "x" + gen("v", check=lambda text: judge.run(text, backend=backend)["verdict"] == "yes")

    with pytest.raises(ProgramError, match="refuses 'v'"):
        judged.run(backend=backend)
    with pytest.raises(ProgramError, match="refuses 'v'"):
        asyncio.run(judged.arun(backend=backend))


def test_what_the_backend_keeps_of_the_program_is_dropped() -> None:
    @function
    def reads(s: Any) -> None:
        s += "x" + gen("v", check=no_bad) + gen("w")
        s["w"]

    backend = MockBackend({"v": "bad"})
    with pytest.raises(ProgramError, match="refuses 'v'"):
        reads.run(backend=backend)
    assert backend.dropped == [backend.requests[0].id]
    assert len(ops_of(backend.requests[0])) > 0
