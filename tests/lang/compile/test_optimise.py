"""The optimiser: what it drops, moves and hoists; and that values stay what they were."""

from bough.lang.compile.optimise import PASSES, optimise
from bough.runtime.protocol.condition import Compare, Ref
from bough.runtime.protocol.program import Assign, Fork, Gen, Join, Repeat, RoleBegin, RoleEnd, Text, Use, When
from bough.runtime.protocol.sampling_params import SamplingParams

NOTHING = Compare("a", "eq", "a")


def text(branch, *parts):
    return Text(branch, parts)


def only(name, ops, wanted=()):
    return optimise(tuple(ops), set(wanted), [name])


def test_a_branch_that_nobody_reads_is_dropped():
    ops = [text(0, "q"), Fork(0, (1, 2)), Gen(1, "a"), Gen(2, "b"), Join(0, (1, 2)), text(0, Ref(1, "a")), Gen(0, "c")]
    assert only("unread", ops, [Ref(0, "c")]) == (
        text(0, "q"),
        Fork(0, (1,)),
        Gen(1, "a"),
        Join(0, (1,)),
        text(0, Ref(1, "a")),
        Gen(0, "c"),
    )


def test_what_follows_the_last_value_that_is_read_is_dropped():
    ops = [text(0, "q"), Gen(0, "a"), text(0, "r"), Gen(0, "b"), text(0, "s")]
    assert only("unread", ops, [Ref(0, "a")]) == (text(0, "q"), Gen(0, "a"))
    assert only("unread", ops, []) == ()


def test_the_context_of_a_needed_value_is_needed():
    ops = [Gen(0, "a"), Fork(0, (1,)), Gen(1, "b"), Fork(1, (2,)), Gen(2, "c"), Gen(1, "d"), Gen(0, "e")]
    assert only("unread", ops, [Ref(2, "c")]) == tuple(ops[:5])


def test_a_tool_is_used_even_if_nobody_reads_what_it_returns():
    ops = [Fork(0, (1, 2)), Use(1, "x", "send"), Gen(2, "y"), Join(0, (1, 2))]
    assert only("unread", ops) == (Fork(0, (1,)), Use(1, "x", "send"), Join(0, (1,)))


def test_conditions_keep_what_they_look_at():
    look = When(0, Compare(Ref(1, "a"), "eq", "x"), (Gen(0, "b"),))
    ops = [Fork(0, (1, 2)), Gen(1, "a"), Gen(2, "z"), look]
    assert only("unread", ops, [Ref(0, "b")]) == (Fork(0, (1,)), Gen(1, "a"), look)


def test_branches_that_are_appended_are_needed_whole():
    ops = [Fork(0, (1,)), Gen(1, "a"), text(1, "end"), Join(0, (1,), "append"), Gen(0, "b")]
    assert only("unread", ops, [Ref(0, "b")]) == tuple(ops)
    assert only("unread", ops, [Ref(1, "a")]) == (Fork(0, (1,)), Gen(1, "a"))


def test_values_of_a_loop_keep_the_loop():
    loop = Repeat(0, (Gen(0, "a"), Gen(0, "b")), Compare(Ref(0, "b"), "eq", "x"), 3)
    assert only("unread", [loop, Gen(0, "c")], [Ref(0, "a")]) == (loop,)


def test_a_join_waits_as_late_as_it_can():
    ops = [Fork(0, (1,)), Gen(1, "a"), Join(0, (1,)), Gen(0, "b"), text(0, Ref(1, "a")), Gen(0, "c")]
    assert only("overlap", ops) == (ops[0], ops[1], *ops[3:], Join(0, (1,)))


def test_a_join_that_appends_stays():
    ops = (Fork(0, (1,)), Gen(1, "a"), Join(0, (1,), "append"), Gen(0, "b"))
    assert only("overlap", ops) == ops


def messages(branch, question):
    return [RoleBegin(branch, "user"), text(branch, question), RoleEnd(branch), Gen(branch, "a")]


def test_what_branches_begin_with_is_appended_once():
    ops = [text(0, "q"), Fork(0, (1, 2)), *messages(1, "x"), *messages(2, "x"), Join(0, (1, 2))]
    assert only("prefixes", ops) == (
        text(0, "q"),
        Fork(0, (3,)),
        RoleBegin(3, "user"),
        text(3, "x"),
        RoleEnd(3),
        Fork(3, (1, 2)),
        Gen(1, "a"),
        Gen(2, "a"),
        Join(0, (1, 2)),
    )


def test_text_is_not_cut_in_two():
    ops = [Fork(0, (1, 2)), *messages(1, "same and x"), *messages(2, "same and y")]
    hoisted = only("prefixes", ops)
    assert hoisted[:3] == (Fork(0, (3,)), RoleBegin(3, "user"), Fork(3, (1, 2)))
    assert text(1, "same and x") in hoisted and text(2, "same and y") in hoisted


def test_prefixes_of_forks_in_forks():
    inner = [op for child in (3, 4) for op in (text(child, "z"), Gen(child, "c"))]
    ops = [Fork(0, (1, 2)), text(1, "x"), Fork(1, (3, 4)), *inner, text(2, "x"), Gen(2, "b")]
    assert only("prefixes", ops) == (
        Fork(0, (5,)),
        text(5, "x"),
        Fork(5, (1, 2)),
        Fork(1, (6,)),
        text(6, "z"),
        Fork(6, (3, 4)),
        Gen(3, "c"),
        Gen(4, "c"),
        Gen(2, "b"),
    )


def test_what_must_not_be_hoisted_stays():
    appended = (Fork(0, (1, 2)), text(1, "x"), text(2, "x"), Join(0, (1, 2), "append"))
    isolated = (Fork(0, (1, 2), isolated=True), text(1, "x"), text(2, "x"))
    healed = SamplingParams(token_healing=True)
    healing = (Fork(0, (1, 2)), text(1, "x"), Gen(1, "a", healed), text(2, "x"), Gen(2, "a", healed))
    own = (Fork(0, (1, 2)), text(1, Ref(1, "v")), text(2, Ref(1, "v")))
    for ops in (appended, isolated, healing, own, (Fork(0, (1,)), text(1, "x"))):
        assert only("prefixes", ops) == ops


def test_all_passes_together():
    ops = [
        text(0, "q"),
        Fork(0, (1, 2, 3)),
        *(op for child in (1, 2, 3) for op in (text(child, "same"), Gen(child, "a"))),
        Join(0, (1, 2, 3)),
        Assign(0, "v", ("x",)),
        Gen(0, "b"),
    ]
    assert optimise(tuple(ops), {Ref(1, "a"), Ref(2, "a"), Ref(0, "b")}) == (
        text(0, "q"),
        Fork(0, (3,)),
        text(3, "same"),
        Fork(3, (1, 2)),
        Gen(1, "a"),
        Gen(2, "a"),
        Assign(0, "v", ("x",)),
        Gen(0, "b"),
        Join(0, (1, 2)),
    )
    assert optimise(tuple(ops), set(), []) == tuple(ops)
    assert list(PASSES) == ["unread", "overlap", "prefixes"]
