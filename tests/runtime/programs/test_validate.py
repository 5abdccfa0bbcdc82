"""Conditions and loops: what each bound refuses, what is skipped, and what goes on around them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from bough.runtime.programs import validate as blocks
from bough.runtime.programs.validate import MAX_BRANCHES, MAX_DEPTH, MAX_OPS, MAX_PATTERNS, MAX_STOP_PATTERNS, MAX_TURNS
from bough.runtime.protocol.condition import Compare, Condition, Count, Every, Hole, Matches, Negation, Ref, Times
from bough.runtime.protocol.program import (
    Assign,
    Cancel,
    Fork,
    Gen,
    Join,
    Op,
    Repeat,
    RoleEnd,
    Select,
    Skipped,
    Text,
    Use,
    Value,
    When,
    walk,
)
from bough.runtime.protocol.sampling_params import SamplingParams

from .oracle import Heard, drive
from .place import GREEDY, Place, bound
from .tool_place import ToolPlace

TRUE: Condition = Every(())
FALSE: Condition = Negation(TRUE)


@pytest.fixture
def place() -> Iterator[ToolPlace]:
    made = ToolPlace()
    yield made
    made.close()


def skipped(heard: Heard) -> list[tuple[int, str]]:
    return [(event.branch, event.name) for event in heard.events if isinstance(event, Skipped)]


def nested(depth: int, inner: Op) -> Op:
    for _ in range(depth):
        inner = When(0, TRUE, (inner,))
    return inner


def test_the_other_block_is_skipped(place: ToolPlace) -> None:
    inner = When(0, TRUE, (Gen(0, "c", GREEDY),), (Select(0, "d", ("x", "y")),))
    ops: list[Op] = [
        Text(0, ("x",)),
        When(0, FALSE, (Gen(0, "a", GREEDY), inner, Assign(0, "e", ("!",))), (Text(0, ("-",)), Gen(0, "b", GREEDY))),
        When(0, TRUE, (Gen(0, "f", GREEDY),)),
        When(0, TRUE),
    ]
    heard = place.run(ops)
    assert skipped(heard) == [(0, "a"), (0, "c"), (0, "d")]
    assert set(heard.texts) == {(0, "b"), (0, "f")}
    assert heard.done.texts[0] == f"x-{heard.texts[0, 'b']}{heard.texts[0, 'f']}"


def test_a_loop_streams_each_turn(place: ToolPlace) -> None:
    body: tuple[Op, ...] = (Text(0, (";",)), Gen(0, "g", GREEDY))
    heard = place.run([Text(0, ("x",)), Repeat(0, body, Compare(Times(0, "g"), "ge", 3), 10), Text(0, (Ref(0, "g"),))])
    values = [event for event in heard.events if isinstance(event, Value)]
    assert [value.turn for value in values] == [0, 1, 2]
    assert heard.streamed(0, "g") == "".join(value.text for value in values)
    assert heard.done.texts[0] == "x" + "".join(f";{value.text}" for value in values) + values[-1].text
    order = [(type(event).__name__, getattr(event, "turn", None)) for event in heard.events]
    assert order[-2:] == [("Value", 2), ("Done", None)]


def test_a_loop_ends_when_its_condition_holds_or_its_turns_are_over(place: ToolPlace) -> None:
    for until, at_most, turns in ((TRUE, 5, 1), (FALSE, 5, 5), (FALSE, 1, 1), (FALSE, MAX_TURNS, MAX_TURNS)):
        assert place.run([Repeat(0, (Text(0, ("a",)),), until, at_most)]).done.texts[0] == "a" * turns


def test_a_seed_draws_anew_in_each_turn(place: ToolPlace) -> None:
    sampling = SamplingParams(max_tokens=8, temperature=1.0, seed=3)
    body: tuple[Op, ...] = (Fork(0, (1,)), Gen(1, "g", sampling), Join(0, (1,)))
    heard = place.run([Text(0, ("x",)), Repeat(0, body, FALSE, 4)])
    texts = [event.text for event in heard.events if isinstance(event, Value)]
    assert len(set(texts)) == 4
    single = place.run([Text(0, ("x",)), Fork(0, (1,)), Gen(1, "g", sampling)])
    assert single.texts[1, "g"] == texts[0]


def test_who_is_outside_of_a_loop_waits_for_its_end(place: ToolPlace) -> None:
    """However fast it is: what it finds does not depend on who is faster."""
    body: tuple[Op, ...] = (
        Gen(1, "g", GREEDY),
        Fork(1, (3,)),
        Text(3, ("in the loop: ", Ref(1, "g"))),
        Assign(3, "seen", (Ref(1, "g"),)),
        Join(1, (3,)),
    )
    ops: list[Op] = [
        Text(0, ("x",)),
        Fork(0, (1, 2)),
        Repeat(1, body, FALSE, 3),
        Text(2, (Ref(1, "g"), Ref(3, "seen"))),
        Gen(1, "after", GREEDY),
    ]
    heard = place.run(ops)
    last = [event.text for event in heard.events if isinstance(event, Value) and event.name == "g"][-1]
    assert heard.done.texts[2] == f"x{last}{last}"
    assert heard.done.texts[3].endswith(f"in the loop: {last}")


def test_a_join_of_an_older_branch_in_a_block_takes_what_it_had_there(place: ToolPlace) -> None:
    ops: list[Op] = [
        Text(0, ("x",)),
        Fork(0, (1, 2)),
        Text(1, ("-early",)),
        Gen(0, "slow", GREEDY),
        When(0, TRUE, (When(0, TRUE, (Join(0, (1,), "append"),)),), (Join(0, (2,), "append"),)),
        Text(1, ("-late",)),
        Repeat(0, (Join(0, (1,), "append"), Text(0, (".",))), FALSE, 2),
    ]
    heard = place.run(ops)
    assert heard.done.texts[0] == f"x{heard.texts[0, 'slow']}-early-early-late.-early-late."


def test_a_child_in_a_block_joins_its_parent(place: ToolPlace) -> None:
    inner = When(1, TRUE, (Join(1, (0,)), Text(1, ("b",))))
    block: tuple[Op, ...] = (Fork(0, (1,)), Text(0, ("a",)), inner, Text(0, ("c",)))
    assert place.run([Text(0, ("x",)), When(0, TRUE, block)]).done.texts == {0: "xac", 1: "xb"}


def test_a_branch_of_a_block_goes_on_beside_it(place: ToolPlace) -> None:
    inner: tuple[Op, ...] = (Fork(0, (1,)), Gen(1, "g", GREEDY))
    heard = place.run([Text(0, ("x",)), When(0, TRUE, inner), Text(0, ("so ", Ref(1, "g")))], keep=True)
    assert heard.done.texts[0] == "xso " + heard.texts[1, "g"]
    assert "is forked in another block" in place.refusal([Text(1, ("y",))], resume=True).message
    assert "forks branch 1, which exists" in place.refusal([Fork(0, (1,))], resume=True).message


def test_a_value_of_a_block_that_is_not_entered_never_comes(place: ToolPlace) -> None:
    block = When(0, FALSE, (Fork(0, (2,)), Gen(2, "g", GREEDY)))
    ops: list[Op] = [Text(0, ("x",)), Fork(0, (1,)), Gen(0, "slow", GREEDY), block, Text(1, (Ref(2, "g"),))]
    heard = place.start(ops)
    assert not heard.over  # it may still come
    place.drive(lambda: heard.over)
    assert (heard.failed.branch, heard.failed.index) == (1, 6)
    assert "no value named 'g' in branch 2" in heard.failed.error.message


def test_the_index_of_a_failure_counts_what_is_in_blocks(place: ToolPlace) -> None:
    bad = Text(0, (Ref(0, "nothing"),))
    ops: list[Op] = [
        When(0, TRUE, (Text(0, ("a",)),), (Text(0, ("b",)), Text(0, ("c",)))),
        Repeat(0, (Text(0, ("d",)), When(0, TRUE, (), ()), When(0, FALSE, (Text(0, ("e",)),), (bad,))), TRUE, 2),
    ]
    index = place.run(ops).failed.index
    assert index is not None
    assert list(walk(ops))[index] is bad


def test_a_deadlock_in_a_block_fails(place: ToolPlace) -> None:
    waits = When(0, Compare(Ref(1, "a"), "eq", "x"), (Text(0, ("?",)),))
    ops: list[Op] = [Text(0, ("x",)), Fork(0, (1,)), waits, Text(1, (Ref(0, "b"),)), Assign(0, "b", ("y",))]
    heard = place.run([*ops, Assign(1, "a", ("x",))])
    assert (heard.failed.error.code, heard.failed.index) == ("invalid_program", 2)


# Bounds


def deep_condition(depth: int) -> Condition:
    found = TRUE
    for _ in range(depth):
        found = Negation(found)
    return found


REFUSED: dict[str, tuple[list[Op], str]] = {
    "turns": ([Repeat(0, (), TRUE, MAX_TURNS + 1)], "at_most must be 1 to 1000, got 1001"),
    "no turns": ([Repeat(0, (), TRUE, 0)], "at_most must be 1 to 1000, got 0"),
    "depth": ([nested(MAX_DEPTH + 1, Text(0, ("x",)))], "nested 32 levels deep"),
    "depth of a condition": ([When(0, deep_condition(40))], "nested 32 levels deep"),
    "instructions": ([When(0, TRUE, (Text(0, ("x",)),) * MAX_OPS)], f"1 to {MAX_OPS} instructions, those in blocks"),
    "conditions": ([When(0, Every((TRUE,) * 10_000))] * 10, "the conditions of a program"),
    "parts of a condition": ([When(0, Every((TRUE,) * MAX_OPS))], "more than 16384 parts, but 16384 is the limit"),
    "a large block": ([When(0, TRUE, (RoleEnd(0),) * 9000)], "has too much in it: 8192 instructions"),
    "many values": (
        [When(0, TRUE, tuple(When(0, TRUE, (Gen(0, "x"),) * 5000) for _ in range(4)))],
        "and 16384 values, are the limit",
    ),
    "a large join": ([Fork(0, (1,)), Join(0, (1,) * 5000)], "joins 5000 branches, but 4096 is the limit"),
    "stop patterns": (
        [Gen(0, f"x{n}", SamplingParams(stop_regex="a" * (n + 1))) for n in range(MAX_STOP_PATTERNS + 1)],
        "16 different stop_regex at most",
    ),
    "patterns": (
        [When(0, Every(tuple(Matches(Ref(0, "x"), "a" * (n + 1)) for n in range(MAX_PATTERNS + 1))))],
        "64 patterns at most",
    ),
    "a pattern": ([When(0, Matches(Ref(0, "x"), "("))], "the pattern '\\(' cannot be compiled"),
    "joins": ([Fork(0, (1,)), When(0, TRUE, tuple(Join(0, (1,) * 1000) for _ in range(200)))], "joins"),
    "branches": ([When(0, TRUE, (Fork(0, tuple(range(1, MAX_BRANCHES + 1))),))], "branches at most"),
    "a fork that exists": ([Fork(0, (1,)), When(0, TRUE, (Fork(0, (1,)),))], "forks branch 1, which exists"),
    "forks of both blocks": ([When(0, TRUE, (Fork(0, (1,)),), (Fork(0, (1,)),))], "forks branch 1, which exists"),
    "an older branch": ([Fork(0, (1,)), When(0, TRUE, (Text(1, ("x",)),))], "branch 1, which is forked outside of the"),
    "a branch of a block": ([When(0, TRUE, (Fork(0, (1,)),)), Text(1, ("x",))], "branch 1, which is forked in another"),
    "a join of it": ([When(0, TRUE, (Fork(0, (1,)),)), Join(0, (1,))], "joins branch 1, which is not a child"),
    "a loop without a join": ([Repeat(0, (Fork(0, (1,)),), TRUE, 2)], "instruction 1 forks branch 1 in a block"),
    "a loop with a join of one": ([Repeat(0, (Fork(0, (1, 2)), Join(0, (1,))), TRUE, 2)], "forks branch 2 in a block"),
    "a loop with an early join": (
        [Repeat(0, (Fork(0, (1,)), Join(0, (1,)), Text(1, ("x",))), TRUE, 2)],
        "it must be joined there, after all that it does",
    ),
    "a loop with a join in a block": (
        [Repeat(0, (Fork(0, (1,)), When(0, TRUE, (Join(0, (1,)),))), TRUE, 2)],
        "it must be joined there",
    ),
    "a block in a loop": ([Repeat(0, (When(0, TRUE, (Fork(0, (1,)),)),), TRUE, 2)], "instruction 2 forks branch 1"),
    "a hole": ([Text(0, ("a", Hole("who")))], "instruction 0 has a hole for 'who'"),
    "a hole in a value": ([Assign(0, "x", (Hole("who"),))], "has a hole for 'who'"),
    "a hole in a condition": ([When(0, Compare(Count((Compare(Hole("n"), "eq", 1),)), "eq", 1))], "a hole for 'n'"),
    "a hole in a block": ([When(0, TRUE, (Text(0, (Hole("who"),)),))], "instruction 1 has a hole"),
    "a hole for a tool": ([Use(0, "u", "upper", (("text", (Hole("who"),)),))], "has a hole for 'who'"),
    "a cancel of another": ([When(0, TRUE, (Fork(0, (1,)), Cancel(1)))], "cancels branch 1, which is not its own"),
}


@pytest.mark.parametrize(("ops", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_well_formed_is_refused(place: ToolPlace, ops: list[Op], message: str) -> None:
    error = place.refusal(ops)
    assert re.search(message, error.message)
    assert error.param == "ops"
    assert place.executor.num_states == 0


def test_a_refused_stretch_leaves_blocks_out(place: ToolPlace) -> None:
    place.run([Text(0, ("x",))], keep=True)
    refused: list[Op] = [When(0, TRUE, (Fork(0, (1,)), Text(1, ("y",)))), Repeat(0, (), TRUE, 0)]
    assert "at_most" in place.refusal(refused, resume=True).message
    assert place.run([Fork(0, (1,))], resume=True).done.texts == {0: "x", 1: "x"}


def test_the_deepest_blocks_run(place: ToolPlace) -> None:
    assert place.run([nested(MAX_DEPTH, Text(0, ("x",)))]).done.texts == {0: "x"}


def test_hostile_nesting_is_refused_without_recursion(place: ToolPlace) -> None:
    op = nested(50_000, Text(0, ("x",)))
    assert "nested 32 levels" in place.refusal([op]).message
    assert sum(1 for _ in walk([op])) == 50_001
    while isinstance(op, When):  # taken apart, so that freeing it does not recur
        op = op.then[0]


def test_loops_in_loops_are_bounded_and_make_way_for_others(place: ToolPlace) -> None:
    bound(place.machine, work=60_000)
    endless = Repeat(0, (Repeat(0, (Repeat(0, (Assign(0, "x", ("y",)),), FALSE, 1000),), FALSE, 1000),), FALSE, 1000)
    hostile = place.start([endless], "hostile")
    other = place.start([Text(0, ("x",)), Gen(0, "g", GREEDY)], "other")
    num_calls = 0
    while not hostile.over:
        started = time.monotonic()
        place.next_call()()
        assert time.monotonic() - started < 0.5
        place.engine.step()
        num_calls += 1
    assert num_calls > 5
    assert other.done  # long before
    assert hostile.failed.error.code == "program_too_long"


def test_what_a_loop_copies_and_compares_is_bounded(place: ToolPlace) -> None:
    bound(place.machine, work=20_000)
    long = "a" * 1500
    fork: tuple[Op, ...] = (Fork(0, tuple(range(1, 400))), Join(0, tuple(range(1, 400))))
    heard = place.run([Text(0, (long,)), Repeat(0, fork, FALSE, 1000)])
    assert heard.failed.error.code == "program_too_long"
    matches = Matches(Ref(0, "x"), "(a|b)*c")
    heard = place.run([Assign(0, "x", ("ab" * 7000,)), Repeat(0, (When(0, matches),) * 3, FALSE, 1000)])
    assert heard.failed.error.code == "program_too_long"


def test_a_loop_that_forks_holds_what_one_turn_needs(place: ToolPlace) -> None:
    """Branches of a turn are forgotten in the next."""
    bound(place.machine, tokens=12_000)
    body: tuple[Op, ...] = (Fork(0, (1, 2)), Text(1, ("b" * 100,)), Join(0, (1, 2)))
    heard = place.run([Text(0, ("a" * 1000,)), Repeat(0, body, FALSE, 50)], keep=True)
    assert heard.done
    assert place.executor._states["p"].num_tokens < 6000
    heard = place.run([Repeat(0, (Assign(0, "x", ("y" * 1000,)),), FALSE, 50)], resume=True)
    assert heard.failed.error.code == "invalid_value"


def test_without_a_queue_of_calls_a_program_is_walked_at_once() -> None:
    place = Place()
    heard = place.start([Repeat(0, (Assign(0, "x", ("y",)),), FALSE, 1000)] * 8)
    assert heard.done
    drive(place.engine)
    place.engine.close()


def test_trace_tells_of_each_token_of_a_loop_once(place: ToolPlace) -> None:
    body: tuple[Op, ...] = (Text(0, ("ab",)), Fork(0, (1,)), Text(1, ("unused",)), Gen(0, "g", GREEDY), Join(0, (1,)))
    heard = place.run([Text(0, ("x",)), Repeat(0, body, FALSE, 3)], trace=True)
    assert len({(piece.branch, piece.op, piece.kind) for piece in heard.pieces}) == len(heard.pieces)
    told = sorted((piece for piece in heard.pieces if piece.branch == 0), key=lambda piece: piece.op)
    assert "".join(text for piece in told for text in piece.texts) == heard.done.texts[0]
    assert sum(len(piece.origins) for piece in heard.pieces if piece.branch == 1) == 3 * len("unused")


def test_limits_are_what_the_decision_says() -> None:
    assert (blocks.MAX_DEPTH, blocks.MAX_TURNS, blocks.MAX_OPS) == (32, 1000, 100_000)
