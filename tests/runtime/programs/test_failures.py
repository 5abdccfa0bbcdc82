"""Branches that fail, begin anew, or are cancelled, while the rest of their program goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bough.runtime.programs.validate import MAX_RETRIES
from bough.runtime.protocol.condition import Compare
from bough.runtime.protocol.program import (
    Assign,
    BranchFailed,
    BranchRestarted,
    Cancel,
    Fork,
    Gen,
    Join,
    Op,
    Ref,
    Repeat,
    RoleEnd,
    Text,
    Use,
    Value,
    When,
)
from bough.runtime.protocol.sampling_params import SamplingParams

from .control_programs import ControlPrograms
from .oracle import Heard, Oracle
from .place import GREEDY
from .test_control import BIAS, expected, outcome
from .tool_place import ToolPlace

ENDLESS = SamplingParams(max_tokens=1000, temperature=0.0, ignore_eos=True)


class Flaky:
    """Fails as often as it is told to, and then says how often it was called."""

    name = "flaky"
    timeout_s = None
    max_chars = 100
    parameters = None

    def __init__(self, num_failures: int) -> None:
        self.num_failures = num_failures
        self.num_calls = 0

    def call(self, arguments: dict[str, Any]) -> str:
        self.num_calls += 1
        if self.num_calls <= self.num_failures:
            raise ValueError(f"not yet: {self.num_calls}")
        return f"call {self.num_calls}"


@pytest.fixture
def place() -> Iterator[ToolPlace]:
    made = ToolPlace()
    yield made
    made.close()


def failures(heard: Heard) -> list[tuple[int, str, int | None]]:
    return [(e.branch, e.error.code, e.index) for e in heard.events if isinstance(e, BranchFailed)]


def restarts(heard: Heard) -> list[tuple[int, int]]:
    return [(e.branch, e.attempt) for e in heard.events if isinstance(e, BranchRestarted)]


BROKEN: dict[str, tuple[Op, str]] = {
    "a generation that is too long": (Gen(1, "g", SamplingParams(max_tokens=4000)), "context_length_exceeded"),
    "a branch that is too long": (Text(1, ("word " * 4000,)), "context_length_exceeded"),
    "a message that is not open": (RoleEnd(1), "invalid_value"),
    "a value that is not there": (Text(1, (Ref(1, "nothing"),)), "invalid_value"),
    "numbers that are not finite": (Text(1, ("!",)), "nonfinite_logits"),
    "a condition on nothing": (When(1, Compare(Ref(1, "nothing"), "eq", "x")), "invalid_value"),
}


@pytest.mark.parametrize(("op", "code"), BROKEN.values(), ids=BROKEN)
def test_a_failure_ends_the_isolated_branch_alone(place: ToolPlace, op: Op, code: str) -> None:
    place.model.broken = ord("!")
    ops: list[Op] = [
        Text(0, ("x",)),
        Fork(0, (1, 2), isolated=True),
        Gen(1, "before", GREEDY),
        op,
        Gen(1, "after", GREEDY),
        Gen(2, "other", GREEDY),
        Join(0, (1, 2), "append"),
        Gen(0, "end", GREEDY),
    ]
    heard = place.run(ops)
    index = 4 if code == "nonfinite_logits" else 3
    assert failures(heard) == [(1, code, index)]
    assert set(heard.texts) == {(1, "before"), (2, "other"), (0, "end")}
    assert heard.done.texts[0] == "x" + heard.texts[2, "other"] + heard.texts[0, "end"]


def test_a_gen_past_its_time_ends_its_branch_and_frees_what_was_forked(place: ToolPlace) -> None:
    ops: list[Op] = [
        Text(0, ("x",)),
        Fork(0, (1,), isolated=True),
        Fork(1, (2, 3)),
        Gen(2, "slow", ENDLESS, timeout_s=5.0),
        Gen(3, "endless", ENDLESS),
        Join(1, (2, 3)),
        Join(0, (1,)),
        Gen(0, "end", GREEDY),
    ]
    heard = place.start(ops)
    for _ in range(3):
        place.engine.step()
    place.clock.now += 6.0
    place.drive(lambda: heard.over)
    assert failures(heard) == [(1, "generation_timeout", 3)]
    assert set(heard.texts) == {(0, "end")}
    assert heard.done


def test_the_time_of_the_program_ends_all_of_it(place: ToolPlace) -> None:
    ops: list[Op] = [Text(0, ("x",)), Fork(0, (1,), isolated=True, retries=3), Gen(1, "slow", ENDLESS)]
    heard = place.start(ops, timeout_s=5.0)
    place.engine.step()
    place.clock.now += 6.0
    place.drive(lambda: heard.over)
    assert (heard.failed.error.code, heard.failed.index) == ("generation_timeout", 2)
    assert not restarts(heard)


def test_who_refers_to_what_a_failed_branch_did_not_make_fails_with_its_reason(place: ToolPlace) -> None:
    ops: list[Op] = [
        Text(0, ("x",)),
        Fork(0, (1, 2), isolated=True),
        Gen(1, "made", GREEDY),
        RoleEnd(1),
        Gen(1, "never", GREEDY),
        Text(2, (Ref(1, "made"), Ref(1, "never"))),
        Text(0, (" ", Ref(1, "made"))),
        Text(0, ("!",)),
    ]
    heard = place.run(ops)
    assert failures(heard) == [(1, "invalid_value", 3), (2, "branch_failed", 5)]
    assert heard.done.texts[0] == f"x {heard.texts[1, 'made']}!"
    (error,) = [e.error for e in heard.events if isinstance(e, BranchFailed) and e.branch == 2]
    assert "no open message" in error.message


def test_instructions_for_a_failed_branch_are_skipped_in_later_stretches(place: ToolPlace) -> None:
    first = place.run([Text(0, ("x",)), Fork(0, (1,), isolated=True), RoleEnd(1)], keep=True)
    assert failures(first) == [(1, "invalid_value", 2)]
    ops: list[Op] = [Gen(1, "g", GREEDY), Fork(1, (2,)), Gen(2, "h", GREEDY), Join(0, (1, 2), "append")]
    second = place.run([*ops, Text(0, ("!",))], keep=True, resume=True)
    assert failures(second) == [(1, "invalid_value", None)]  # once, though three instructions are skipped
    assert not second.texts
    assert second.done.texts[0] == "x!"
    assert place.run([Gen(2, "h", GREEDY)], resume=True).done.requests == 0


def test_a_branch_begins_anew_with_all_that_it_was_given(place: ToolPlace) -> None:
    place.registry.register(flaky := Flaky(2))
    ops: list[Op] = [
        Text(0, ("x",)),
        Fork(0, (1,), isolated=True, retries=2),
        Text(1, ("a",)),
        Gen(1, "g", GREEDY),
        Fork(1, (2,)),
        Gen(2, "h", GREEDY),
        Join(1, (2,), "append"),
        Use(1, "u", "flaky"),
        Join(0, (1,), "append"),
    ]
    heard = place.run(ops)
    assert restarts(heard) == [(1, 1), (1, 2)]
    assert not failures(heard)
    assert flaky.num_calls == 3
    told = [(e.branch, e.name) for e in heard.events if isinstance(e, Value)]
    assert told == [(1, "g"), (2, "h")] * 3 + [(1, "u")]
    assert heard.done.texts[0] == "xa" + heard.texts[1, "g"] + heard.texts[2, "h"] + "call 3"
    assert heard.done.texts[0] == heard.done.texts[1]


def test_retries_come_to_an_end(place: ToolPlace) -> None:
    place.registry.register(Flaky(100))
    ops: list[Op] = [
        Text(0, ("x",)),
        Fork(0, (1,), isolated=True, retries=3),
        Use(1, "u", "flaky"),
        Join(0, (1,), "append"),
    ]
    heard = place.run(ops)
    assert restarts(heard) == [(1, 1), (1, 2), (1, 3)]
    assert failures(heard) == [(1, "tool_failed", 2)]
    assert heard.done.texts == {0: "x", 1: "x"}


def test_isolated_branches_in_isolated_branches(place: ToolPlace) -> None:
    """Each attempt of the outer one gives the inner one all its attempts."""
    place.registry.register(flaky := Flaky(4))
    ops: list[Op] = [
        Text(0, ("x",)),
        Fork(0, (1,), isolated=True, retries=1),
        Fork(1, (2,), isolated=True, retries=1),
        Use(2, "u", "flaky"),
        Join(1, (2,), "append"),
        Text(1, (" so ", Ref(2, "u"))),
    ]
    heard = place.run(ops)
    assert restarts(heard) == [(2, 1), (1, 1), (2, 1)]
    assert failures(heard) == [(2, "tool_failed", 3), (2, "tool_failed", 3), (1, "branch_failed", 5)]
    assert flaky.num_calls == 4


def test_a_retry_draws_anew_from_an_explicit_seed(place: ToolPlace) -> None:
    place.registry.register(Flaky(2))
    sampling = SamplingParams(max_tokens=8, temperature=1.0, seed=7)
    ops: list[Op] = [
        Text(0, ("x",)),
        Fork(0, (1, 2), isolated=True, retries=2),
        Gen(1, "g", sampling),
        Use(1, "u", "flaky"),
        Gen(2, "g", sampling),
    ]
    heard = place.run(ops)
    texts = [e.text for e in heard.events if isinstance(e, Value) and (e.branch, e.name) == (1, "g")]
    assert len(set(texts)) == 3
    assert texts[0] == heard.texts[2, "g"]
    assert all(e.turn == 0 for e in heard.events if isinstance(e, Value))
    place.registry.tools["flaky"].num_calls = 0  # type: ignore[attr-defined]
    again = place.run(ops, "again")
    assert [e.text for e in again.events if isinstance(e, Value) and (e.branch, e.name) == (1, "g")] == texts


def test_who_was_joined_is_not_begun_anew(place: ToolPlace) -> None:
    place.registry.register(Flaky(1))
    ops: list[Op] = [
        Text(0, ("x",)),
        Fork(0, (1,), isolated=True, retries=5),
        Gen(1, "g", GREEDY),
        Join(0, (1,), "append"),
        Use(1, "u", "flaky"),
    ]
    heard = place.run(ops)
    assert not restarts(heard)
    assert failures(heard) == [(1, "tool_failed", 4)]
    assert heard.done.texts[0] == "x" + heard.texts[1, "g"]


def test_a_retry_of_what_an_earlier_stretch_brought(place: ToolPlace) -> None:
    place.registry.register(Flaky(1))
    first = place.run([Text(0, ("x",)), Fork(0, (1,), isolated=True, retries=1), Gen(1, "g", GREEDY)], keep=True)
    second = place.run([Use(1, "u", "flaky"), Join(0, (1,), "append")], resume=True)
    assert restarts(second) == [(1, 1)]
    assert second.texts == {(1, "g"): first.texts[1, "g"], (1, "u"): "call 2"}
    assert second.done.texts[0] == f"x{first.texts[1, 'g']}call 2"


def test_a_stuck_isolated_branch_ends_alone(place: ToolPlace) -> None:
    ops: list[Op] = [
        Text(0, ("x",)),
        Fork(0, (1, 2), isolated=True),
        Text(1, (Ref(2, "b"),)),
        Assign(1, "a", ("one",)),
        Text(2, (Ref(1, "a"),)),
        Assign(2, "b", ("two",)),
        Join(0, (1, 2), "append"),
    ]
    heard = place.run(ops)
    assert [failure[1] for failure in failures(heard)] == ["invalid_program", "branch_failed"]
    assert heard.done.texts[0] == "x"


def test_a_child_that_fails_in_a_loop_begins_anew_in_the_next_turn(place: ToolPlace) -> None:
    place.registry.register(Flaky(2))
    body: tuple[Op, ...] = (
        Fork(0, (1,), isolated=True),
        Use(1, "u", "flaky"),
        Join(0, (1,), "append"),
        Assign(0, "n", ("turn",)),
    )
    heard = place.run([Text(0, ("x",)), Repeat(0, body, Compare("a", "eq", "b"), 4)])
    assert failures(heard) == [(1, "tool_failed", 3)] * 2
    assert heard.done.texts[0] == "xcall 3call 4"
    assert [e.turn for e in heard.events if isinstance(e, Value)] == [0, 1]


# Cancel


def test_cancel_acts_at_once(place: ToolPlace) -> None:
    ops: list[Op] = [
        Text(0, ("x",)),
        Fork(0, (1,)),
        Fork(1, (2,)),
        Gen(1, "a", ENDLESS),
        Gen(2, "b", ENDLESS),
        Gen(0, "c", GREEDY),
        Join(0, (1, 2), "append"),
        Text(0, ("!",)),
    ]
    first = place.start(ops, keep=True)
    for _ in range(3):
        place.engine.step()
    assert place.engine.stats().running == 3
    second = place.start([Cancel(1), Text(1, ("never",))], keep=True, resume=True)
    assert place.engine.stats().running == 1
    assert failures(second) == [(1, "cancelled", 0)]
    assert failures(first) == [(1, "cancelled", None)]
    assert second.done
    place.drive(lambda: first.over)
    assert first.done.texts[0] == "x" + first.texts[0, "c"] + "!"
    third = place.run([Cancel(1), Cancel(2), Join(0, (2,))], resume=True)
    assert not failures(third)  # it has ended already


def test_cancel_of_the_root_ends_all_but_is_no_failure(place: ToolPlace) -> None:
    first = place.start([Text(0, ("x",)), Fork(0, (1,)), Gen(1, "a", ENDLESS), Gen(0, "b", ENDLESS)], keep=True)
    place.engine.step()
    second = place.start([Cancel(0)], resume=True)
    assert first.done.texts == second.done.texts == {0: "x", 1: "x"}
    assert failures(first) == [(0, "cancelled", None)]


def test_what_was_cancelled_does_not_come_again_with_who_forked_it(place: ToolPlace) -> None:
    place.registry.register(Flaky(1))
    ops: list[Op] = [
        Text(0, ("x",)),
        Fork(0, (1,), isolated=True, retries=1),
        Fork(1, (2,)),
        Gen(2, "b", ENDLESS),
        Use(1, "u", "flaky"),
        Cancel(2),
    ]
    heard = place.run(ops)
    assert restarts(heard) == [(1, 1)]
    assert failures(heard) == [(2, "cancelled", 5)]
    assert heard.texts == {(1, "u"): "call 2"}


def test_a_block_may_end_its_branch(place: ToolPlace) -> None:
    stop = When(1, Compare(Ref(1, "a"), "eq", "stop"), (Text(1, ("?",)), Cancel(1), Text(1, ("never",))))
    ops: list[Op] = [Text(0, ("x",)), Fork(0, (1,)), Assign(1, "a", ("stop",)), stop, Text(1, ("!",))]
    heard = place.run([*ops, Join(0, (1,), "append")])
    assert failures(heard) == [(1, "cancelled", 5)]
    assert heard.done.texts == {0: "x", 1: "x?"}


@pytest.mark.parametrize("seed", range(20))
def test_random_programs_with_cancels_equal_the_oracle(seed: int) -> None:
    programs = ControlPrograms(seed, BIAS)
    stretches = [programs.stretch(8, cancels=index > 0) for index in range(4)]
    oracle = Oracle(BIAS, {"upper": lambda text: text[:8].upper() + "!"})
    for ops in stretches:
        oracle.run(ops)
    place = ToolPlace()
    place.model.bias = BIAS
    assert outcome(place, stretches) == expected(oracle)
    place.close()


# Bounds


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (Fork(0, (1,), retries=1), "retries need isolated"),
        (Fork(0, (1,), isolated=True, retries=MAX_RETRIES + 1), "retries must be 0"),
        (Fork(0, (1,), isolated=True, retries=-1), "retries must be 0"),
        (Cancel(7), "branch 7, which does not exist"),
    ],
)
def test_what_is_not_well_formed_is_refused(place: ToolPlace, op: Op, message: str) -> None:
    assert message in place.refusal([Text(0, ("x",)), op]).message


def test_attempts_in_attempts_are_bounded(place: ToolPlace) -> None:
    """Sixteen attempts each, ten branches deep, would never end."""
    ops: list[Op] = [Text(0, ("x",))]
    ops += [Fork(depth, (depth + 1,), isolated=True, retries=16) for depth in range(10)]
    ops.append(RoleEnd(10))
    ops += [Text(depth, (Ref(depth + 1, "nothing"),)) for depth in range(1, 10)]
    heard = place.run(ops)
    assert heard.failed.error.code == "program_too_long"
