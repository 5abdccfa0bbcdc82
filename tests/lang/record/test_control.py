"""Blocks and conditions: what is recorded for them, what is refused, and what can be read afterwards."""

from __future__ import annotations

from functools import partial

import pytest

from bough.lang.api import assistant, function, gen, select, user
from bough.lang.backends.mock import MockBackend
from bough.lang.control import count, repeat_until, times, var, when
from bough.lang.diagnostics.errors import ProgramError
from bough.lang.record.condition import Condition
from bough.runtime.protocol.condition import Compare, Count, Either, Every, Matches, Negation, Ref, Times
from bough.runtime.protocol.program import Assign, Repeat, Text, When, walk


def record(body, answers=None, **options):
    """The programs that a body sends."""
    backend = MockBackend(answers)
    function(body).run(backend=backend, **options)
    return backend.requests


def run(body, answers=None):
    return function(body).run(backend=MockBackend(answers))


def asked(condition_of):
    """Condition on x and n as the engine gets it."""

    def body(s):
        s += gen("x") + gen("n", dtype=int)
        s += when(condition_of(s), "yes", "no")

    (program,) = record(body, {"x": "red", "n": "3"})
    (op,) = (op for op in program.ops if isinstance(op, When))
    return op.condition


X, N = Ref(0, "x"), Ref(0, "n")


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (lambda s: s.ref("x") == "red", Compare(X, "eq", "red")),
        (lambda s: s.ref("x") != "red", Compare(X, "ne", "red")),
        (lambda s: var("n") < 5, Compare(N, "lt", 5.0)),
        (lambda s: var("n") > 5, Compare(N, "gt", 5.0)),
        (lambda s: var("n") >= 2.5, Compare(N, "ge", 2.5)),
        (lambda s: var("n") <= 1, Compare(N, "le", 1.0)),
        (lambda s: var("x") == True, Compare(X, "eq", "True")),  # noqa: E712
        (lambda s: s.ref("x") == s.ref("n"), Compare(X, "eq", N)),
        (lambda s: var("x").contains("e"), Compare(X, "contains", "e")),
        (lambda s: var("x").contains(var("n")), Compare(X, "contains", N)),
        (lambda s: var("x").matches("r.d"), Matches(X, "r.d")),
        (lambda s: ~(var("x") == "a"), Negation(Compare(X, "eq", "a"))),
        (lambda s: (var("x") == "a") & (var("n") == 1), Every((Compare(X, "eq", "a"), Compare(N, "eq", 1.0)))),
        (lambda s: (var("x") == "a") | (var("n") == 1), Either((Compare(X, "eq", "a"), Compare(N, "eq", 1.0)))),
        (lambda s: times("x") >= 2, Compare(Times(0, "x"), "ge", 2.0)),
        (
            lambda s: count(var("x") == "a", var("x") == "red") == 1,
            Compare(Count((Compare(X, "eq", "a"), Compare(X, "eq", "red"))), "eq", 1.0),
        ),
    ],
)
def test_a_condition_is_asked_of_the_engine(condition, expected):
    assert asked(condition) == expected


def test_a_value_that_the_program_has_set_is_compared_as_what_it_is():
    def body(s):
        s["limit"] = 3
        s += gen("n", dtype=int)
        s += when(var("n") > var("limit"), "more") + when(var("limit") == 3, "three")

    (program,) = record(body, {"n": "4"})
    whens = [op for op in program.ops if isinstance(op, When)]
    assert [op.condition for op in whens] == [Compare(N, "gt", 3.0), Compare(3.0, "eq", 3.0)]


def test_a_passage_is_kept_for_the_engine_when_it_is_asked_about():
    def body(s):
        with s.var_scope("both"):
            s += "a" + gen("x")
        s += when(var("both") == "ab", "yes", "no")

    (program,) = record(body, {"x": "b"})
    assert isinstance(program.ops[2], Assign) and program.ops[2].parts == ("a", X)
    assert run(body, {"x": "b"}).text() == "abyes"


@pytest.mark.parametrize("ask", [bool, lambda c: c and "x", lambda c: not c])
def test_a_condition_is_no_bool(ask):
    def body(s):
        s += gen("x")
        for asked in (s.ref("x") == "a", s.ref("x"), times("x") > 1):
            with pytest.raises(ProgramError, match=r"bough\.when"):
                ask(asked)

    record(body)


@pytest.mark.parametrize("other", [None, [1], object()])
def test_only_texts_and_numbers_can_be_compared_with(other):
    with pytest.raises(ProgramError, match="can be compared with"):
        var("x") == other  # noqa: B015


def test_two_generated_numbers_are_not_ordered_as_texts():
    def body(s):
        s += gen("m", dtype=int) + gen("n", dtype=int)
        s += when(var("m") < var("n"), "less")

    with pytest.raises(ProgramError, match="compare each with a number"):
        record(body)


def test_references_can_still_be_told_apart():
    def body(s):
        s += gen("x")
        reference = s.ref("x")
        assert len({reference, s.ref("x")}) == 2
        assert isinstance(reference == "a", Condition)

    record(body)


# when


def test_one_of_two_blocks_is_done_in_one_request():
    def body(s):
        s += "Is it? " + select("x", ["yes", "no"])
        s += when(var("x") == "yes", "Good: " + gen("good"), lambda s: s.__iadd__("Bad: " + gen("bad")))
        s += ". End " + gen("end")

    backend = MockBackend({"x": "yes"})
    state = function(body).run(backend=backend)
    (program,) = backend.requests
    (op,) = (op for op in program.ops if isinstance(op, When))
    assert (op.then, op.otherwise[0]) == ((Text(0, ("Good: ",)), op.then[1]), Text(0, ("Bad: ",)))
    assert state.text() == "Is it? yesGood: (good). End (end)"
    assert (state["good"], state["bad"]) == ("(good)", None)
    assert run(body, {"x": "no"})["bad"] == "(bad)"


def test_text_does_not_merge_over_the_border_of_a_block():
    def body(s):
        s += "a" + gen("x") + "b"
        s += when(var("x") == "1", "c")
        s += "d"

    (program,) = record(body)
    assert [op.parts for op in walk(program.ops) if isinstance(op, Text)] == [("a",), ("b",), ("c",), ("d",)]


def test_a_variable_that_both_blocks_set_can_be_read_and_referred_to():
    def body(s):
        s += gen("q")
        s += when(var("q") == "a", "A" + gen("x"), "B" + gen("x", dtype=int))
        s += "<" + s.ref("x") + ">"

    state = run(body, {"q": "b", "x": "7"})
    assert (state.text(), state["x"]) == ("bB7<7>", 7)
    state = run(body, {"q": "a", "x": "7"})
    assert (state.text(), state["x"]) == ("aA7<7>", "7")
    assert state.get_meta_info("x")["completion_tokens"] == 1


def test_a_variable_of_before_stays_if_its_block_is_not_done():
    def body(s):
        s += gen("q") + gen("x")
        s["n"] = 1
        s += when(var("q") == "a", lambda s: redo(s))
        s += s.ref("x") + s.ref("n")

    def redo(s):
        s += gen("x")
        s["n"] = 2.5

    state = run(body, {"q": "a", "x": ["old", "new"]})
    assert (state.text(), state["x"], state["n"]) == ("aoldnewnew2.5", "new", 2.5)
    state = run(body, {"q": "b", "x": ["old", "new"]})
    assert (state.text(), state["x"], state["n"]) == ("boldold1", "old", 1)


def test_a_reference_to_what_was_not_made_is_no_text():
    def body(s):
        s += gen("q") + when(var("q") == "a", gen("x")) + "[" + var("x") + "]" + when(var("x") == "", "none")

    assert run(body, {"q": "b"}).text() == "b[]none"


def test_probabilities_of_a_select_in_a_block():
    def body(s):
        s += gen("q") + when(var("q") == "a", select("x", ["one", "two"]))

    assert run(body, {"q": "a", "x": "two"}).probabilities("x") == {"one": 0.25, "two": 0.75}
    with pytest.raises(ProgramError, match="not chosen by a select"):
        run(body, {"q": "b"}).probabilities("x")


def test_messages_in_blocks():
    def body(s):
        s += user("Q") + assistant("A " + gen("x"))
        s += when(var("x") == "more", user("More") + assistant(gen("y")))
        with s.user():
            s += "End" + when(var("x") == "more", "!", "?")

    state = run(body, {"x": "more"})
    assert [m["content"] for m in state.messages()] == ["Q", "A more", "More", "(y)", "End!"]
    state = run(body, {"x": "less"})
    assert [m["content"] for m in state.messages()] == ["Q", "A less", "End?"]
    assert state.text() == "<|user|>\nQ<|end|>\n<|assistant|>\nA less<|end|>\n<|user|>\nEnd?<|end|>\n"


def test_a_nested_function_records_into_a_block():
    @function
    def ask(s, what):
        s += what + "?" + gen("reply")
        return "not appended"

    def body(s):
        s += gen("q")
        s += when(var("q") == "a", lambda s: ask(s, "A"), ask("B"))

    assert run(body, {"q": "a"}).text() == "aA?(reply)"
    assert run(body, {"q": "b"}).text() == "bB?(reply#2)"


def test_blocks_in_blocks_forks_in_them_and_them_in_forks():
    def body(s):
        s += gen("q")
        branches = s.fork(2)
        for index, branch in enumerate(branches):
            branch += when(var("q") == "a", partial(inner, index=index), "no")
        branches.join("append")

    def inner(s, index):
        group = s.fork(2)
        group += lambda i: f"{index}{i}" + gen("x")
        group.join("append")
        s += when(s.ref("x", 0) == "1", "one", "other")

    state = run(body, {"q": "a", "x": ["1", "2", "3", "4"]})
    assert state.text().count("one") == 1 and state.text().count("other") == 1
    assert sorted(value for values in state["x"] for value in values) == ["1", "2", "3", "4"]


# repeat_until


def test_a_loop_is_one_request_and_its_turns_are_a_history():
    def body(s):
        s += "Count:" + repeat_until(var("n") >= 3, " " + gen("n", dtype=int), at_most=10) + " done" + gen("end")

    backend = MockBackend({"n": ["1", "2", "3", "4"]})
    state = function(body).run(backend=backend)
    assert len(backend.requests) == 1
    assert (state["n"], state.history("n"), state.text()) == (3, [1, 2, 3], "Count: 1 2 3 done(end)")
    assert "".join(state.text_iter("n")) == "123"
    assert "".join(state.text_iter()) == state.text()
    (op,) = (op for op in backend.requests[0].ops if isinstance(op, Repeat))
    assert op.at_most == 10 and op.until == Compare(Ref(0, "n"), "ge", 3.0)


def test_a_loop_ends_after_its_last_turn():
    def body(s):
        s += repeat_until(var("n") == "never", gen("n"), at_most=3)

    assert run(body, {"n": ["a", "b", "c", "d"]}).history("n") == ["a", "b", "c"]


def test_what_a_body_refers_to_is_what_the_turn_before_has_set():
    def body(s):
        s["draft"] = "nothing"

        def better(s):
            s += "Improve " + s.ref("draft") + ": " + gen("draft") + "\n"

        s += repeat_until(times("draft") == 3, better, at_most=5) + "Best: " + var("draft")

    state = run(body, {"draft": ["one", "two", "three", "four"]})
    assert state.text() == "Improve nothing: one\nImprove one: two\nImprove two: three\nBest: three"
    assert state["draft"] == "three"


def test_names_that_are_exchanged_in_a_loop_are_exchanged():
    def body(s):
        s["a"], s["b"] = "1", "2"

        def swap(s):
            s += s.ref("a") + s.ref("b") + gen("n") + ";"
            s["old"] = s.ref("a")
            s["a"] = s.ref("b")
            s["b"] = s.ref("old")

        s += repeat_until(times("n") == 3, swap)
        s += s.ref("a") + s.ref("b")

    state = run(body, {"n": ""})
    assert state.text() == "12;21;12;21"
    assert (state["a"], state["b"], state["old"]) == ("2", "1", "1")


def test_what_only_some_turns_make_is_what_was_made_last():
    def body(s):
        def turn(s):
            s += gen("n")
            s += when(var("n") == "look", gen("seen"))

        s += repeat_until(var("n") == "stop", turn)

    state = run(body, {"n": ["look", "look", "stop"], "seen": ["first", "second"]})
    assert (state["seen"], state.history("seen")) == ("second", ["first", "second"])
    assert run(body, {"n": ["stop"]})["seen"] is None


def test_a_reference_of_before_the_loop_means_the_variable_in_its_condition():
    def body(s):
        s += gen("x")
        s += repeat_until(s.ref("x") == "c", gen("x"), at_most=9)

    assert run(body, {"x": ["a", "b", "c", "d"]}).history("x") == ["a", "b", "c"]


def test_loops_in_loops():
    def body(s):
        def outer(s):
            s += "(" + repeat_until(times("y") >= 100, gen("y"), at_most=2) + gen("x") + ")"

        s += repeat_until(var("x") == "2", outer)

    state = run(body, {"y": ["a", "b", "c", "d"], "x": ["1", "2"]})
    assert state.text() == "(ab1)(cd2)"
    assert state.history("y") == ["a", "b", "c", "d"]


def test_a_loop_with_branches():
    def body(s):
        def turn(s):
            group = s.fork(2)
            group += gen("x")
            group.join()
            s += "[" + s.ref("x", 0) + s.ref("x", 1) + "]"
            with s.copy() as aside:
                aside += gen("aside")
            s += gen("n")

        s += repeat_until(var("n") == "2", turn)

    state = run(body, {"x": ["a", "b", "c", "d"], "n": ["1", "2"]})
    assert (state.text(), state["x"]) == ("[ab]1[cd]2", ["c", "d"])


def test_a_later_submission_refers_to_what_a_block_has_made():
    def body(s):
        s += gen("q") + when(var("q") == "a", gen("x"), gen("x"))
        assert s["q"] == "b"
        s += repeat_until(var("n") == "2", gen("n"))
        assert s["x"] == "1" and s["n"] == "2"
        s += "<" + s.ref("x") + s.ref("n") + ">" + gen("end")

    backend = MockBackend({"q": "b", "x": "1", "n": ["1", "2"]})
    state = function(body).run(backend=backend)
    assert state.text() == "b112<12>(end)"
    assert len(backend.requests) == 3
