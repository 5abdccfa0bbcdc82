"""Blocks and conditions: what is refused, with the line to blame, and what a refusal leaves behind."""

from __future__ import annotations

import pytest

from bough.lang.api import assistant, assistant_begin, function, gen, user
from bough.lang.backends.mock import MockBackend
from bough.lang.control import repeat_until, times, var, when
from bough.lang.diagnostics.errors import ProgramError
from bough.runtime.protocol.errors import RequestError
from bough.runtime.protocol.program import Gen, Join, RoleBegin, walk

from ..fakes import kinds


def record(body, answers=None, **options):
    """The programs that a body sends."""
    backend = MockBackend(answers)
    function(body).run(backend=backend, **options)
    return backend.requests


def run(body, answers=None):
    return function(body).run(backend=MockBackend(answers))


def refused(body, match, answers=None):
    with pytest.raises(ProgramError, match=match) as caught:
        record(body, answers)
    assert caught.value.place is not None and caught.value.place.file == __file__
    return caught.value


@pytest.mark.parametrize(
    "look",
    [
        lambda s: s["x"],
        lambda s: s.text(),
        lambda s: s.messages(),
        lambda s: s.sync(),
        lambda s: s.history("x"),
        lambda s: list(s.text_iter("x")),
        lambda s: s.get_meta_info("x"),
        lambda s: s.values(),
    ],
)
def test_nothing_can_be_read_in_a_block(look):
    def body(s):
        s += gen("x")
        s += when(var("x") == "a", lambda s: look(s))

    refused(body, "cannot be read while a when or repeat_until is recorded")


def test_a_set_value_can_be_read_in_a_block_unless_the_loop_sets_it():
    def body(s):
        s["n"] = 3
        s += repeat_until(var("x") == "a", lambda s: "x" * s["n"] + gen("x"), at_most=2)

    assert run(body, {"x": "a"}).text() == "xxxa"

    def wrong(s):
        s["n"] = 3

        def turn(s):
            s["n"] = s["n"] + 1
            s += gen("x")

        s += repeat_until(var("x") == "a", turn)

    refused(wrong, "was read in a loop that sets it")


@pytest.mark.parametrize("kind", ["when", "repeat"])
def test_a_branch_that_is_forked_in_a_block_must_be_joined_in_it(kind):
    def body(s):
        s += gen("x")
        inner = lambda s: s.fork(2).__iadd__(gen("y")) and None  # noqa: E731
        s += when(var("x") == "a", inner) if kind == "when" else repeat_until(var("x") == "a", inner)

    refused(body, "must be joined in it: 1, 2")


def test_a_branch_of_outside_cannot_be_used_in_a_block():
    def body(s):
        left, right = s.fork(2)
        left += gen("x")
        left += when(var("x") == "a", lambda s: right.__iadd__("text") and None)

    refused(body, "branch 2 was forked outside of this block")


def test_a_message_that_is_opened_in_a_block_must_be_closed_in_it():
    def body(s):
        s += user("Q" + gen("x"))
        s += when(var("x") == "a", assistant_begin())

    refused(body, "close inside it what it opens")


def test_a_block_that_fails_leaves_nothing_behind():
    def body(s):
        s += user("Q" + gen("x"))
        with pytest.raises(ZeroDivisionError):
            s += when(var("x") == "a", lambda s: s.__iadd__("b" + gen("y") + assistant_begin()) and 1 / 0)
        assert "y" not in s
        s += assistant(gen("end"))

    (program,) = record(body)
    assert kinds(program) == ["RoleBegin", "Text", "Gen", "RoleEnd", "RoleBegin", "Gen", "RoleEnd"]


def test_a_scope_cannot_hold_a_block():
    def body(s):
        s += gen("x")
        with s.var_scope("scope"):
            s += when(var("x") == "a", "b")

    refused(body, "cannot be made of text with a when")


def test_a_scope_in_a_block_is_a_variable():
    def body(s):
        def turn(s):
            with s.var_scope("line"):
                s += "<" + gen("x") + ">"

        s += repeat_until(var("line") == "<b>", turn) + var("line")

    state = run(body, {"x": ["a", "b", "c"]})
    assert (state["line"], state.text()) == ("<b>", "<a><b><b>")


def test_a_coroutine_function_cannot_record_a_block():
    async def turn(s):
        s += gen("x")

    refused(lambda s: s.__iadd__(repeat_until(var("x") == "a", turn)), "is a coroutine function")


@pytest.mark.parametrize("block", [3, None, ["a"]])
def test_a_body_is_text_or_an_expression_or_a_function(block):
    if block is None:
        return
    with pytest.raises(ProgramError, match="must be text, an expression, or a function"):
        repeat_until(var("x") == "a", block)


@pytest.mark.parametrize("at_most", [0, -1, True, "3", 10**6])
def test_the_number_of_turns_is_bounded(at_most):
    with pytest.raises(RequestError, match="at_most must be 1 to"):
        repeat_until(var("x") == "a", "text", at_most=at_most)


def test_a_condition_is_needed():
    with pytest.raises(ProgramError, match="needs a condition"):
        when(True, "text")  # type: ignore[arg-type]


def test_an_unknown_variable_is_refused_where_the_condition_is_used():
    refused(lambda s: s.__iadd__(when(var("y") == "a", "text")), "there is no variable 'y'")


def test_how_often_something_was_made_in_two_places_is_not_known():
    def body(s):
        s += gen("x")
        s += repeat_until(times("x") > 2, lambda s: s.__iadd__(when(var("x") == "a", gen("x"))) and None)

    refused(body, "is generated in several places")


def test_a_list_cannot_be_carried_from_turn_to_turn_as_text():
    def body(s):
        s["x"] = "start"

        def turn(s):
            s += s.ref("x")
            group = s.fork(2)
            group += gen("x")
            group.join()
            s += gen("n")

        s += repeat_until(var("n") == "a", turn)

    refused(body, "makes it a list")


def test_an_image_in_a_block_is_refused():
    from bough.lang.api import image

    refused(lambda s: s.__iadd__(gen("x") + when(var("x") == "a", image("cat.png"))), "takes text, not images")


def test_blocks_hold_what_the_engine_can_do():
    def body(s):
        s += gen("q") + repeat_until(var("q") == "(q)", lambda s: s.user(gen("x")))

    (program,) = record(body)
    assert [type(op) for op in walk(program.ops)].count(RoleBegin) == 1
    assert not any(isinstance(op, Join) for op in walk(program.ops))
    assert sum(isinstance(op, Gen) for op in walk(program.ops)) == 2
