"""Mistakes that people make: each is told what is wrong and where, in words that say what to write instead."""

from __future__ import annotations

import asyncio
import functools
import warnings

import pytest

import bough
from bough import (
    MockBackend,
    ProgramError,
    assistant,
    function,
    gen,
    repeat_until,
    select,
    system,
    times,
    user,
    user_begin,
    var,
    when,
)


def refused(body, said, **answers):
    """The error of a program, which says what is wrong and names a line of this file."""
    with pytest.raises(ProgramError) as caught:
        function(body).run(backend=MockBackend(answers))
    assert said in caught.value.message, caught.value.message
    assert caught.value.place is not None
    assert caught.value.place.file == __file__, caught.value
    return caught.value


def add(s, *parts):
    for part in parts:
        s += part


# Names


@pytest.mark.parametrize(
    "ask",
    [
        lambda s: s["nmae"],
        lambda s: s.ref("nmae"),
        lambda s: s.history("nmae"),
        lambda s: s.get_meta_info("nmae"),
        lambda s: add(s, var("nmae")),
        lambda s: add(s, when(var("nmae") == "x", "y")),
        lambda s: add(s, when(times("nmae") > 1, "y")),
        lambda s: add(s, repeat_until(var("nmae") == "x", gen("other"))),
    ],
)
def test_a_name_that_is_nearly_one(ask):
    def body(s):
        s += gen("name")
        ask(s)

    error = refused(body, "there is no variable 'nmae' (there are: 'name'")
    assert "did you mean 'name'?" in error.message
    assert "bough.var" not in error.message


def test_a_reference_to_what_a_loop_will_set():
    error = refused(lambda s: add(s, repeat_until(s.ref("word") == "x", gen("word"))), "bough.var('word')")
    assert error.code == "unknown_variable"


def test_a_value_of_branches_that_are_not_joined():
    def body(s):
        branches = s.fork(2)
        branches += gen("answer")
        s += s.ref("answer", 0)

    refused(body, "a forked branch has it, so join that first")


def test_nothing_was_appended():
    @function
    def forgets(s):
        gen("answer")

    with pytest.raises(ProgramError, match=r"nothing was appended to this state, as with `s \+= "):
        forgets.run(backend=MockBackend())["answer"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("append", r"append with s \+="),
        ("gen", r"s \+= bough.gen"),
        ("join", r"branches.join\(\)"),
        ("answer", r"read the variable with s\['answer'\]"),
        ("other", "no attribute 'other'\n  at "),
        ("probabilitys", "did you mean 'probabilities'"),
        ("tool_calls", r"s\.calls\(name\)"),
        ("finish_reason", r"s\.get_meta_info\(name\)"),
        ("logprobs", r"s\.get_meta_info\(name\)\[\"output_token_logprobs\"\]"),
        ("partial", r"s\.stream\(name, partial=True\)"),
    ],
)
def test_attributes_of_a_state_that_there_are_not(name, said):
    def body(s):
        s += gen("answer")
        getattr(s, name)

    with pytest.raises(AttributeError, match=said):
        function(body).run(backend=MockBackend())


def test_a_list_needs_an_index():
    def body(s, use):
        branches = s.fork(2)
        branches += gen("x")
        branches.join()
        s += use(s)

    refused(lambda s: body(s, lambda s: s.ref("x")), "s.ref('x', index)")
    refused(lambda s: body(s, lambda s: s.ref("x", 5)), "'x' has no element 5: it has 2")
    refused(lambda s: body(s, lambda s: s.ref("x", "a")), "'x' has no element 'a'")
    refused(lambda s: body(s, lambda s: when(s.ref("x") == "a", "b")), "s.ref('x', index)")


# What has no text yet


@pytest.mark.parametrize(
    "write",
    [
        lambda s: f"a {gen('x')}",
        lambda s: f"a {s.ref('q')}",
        lambda s: "a " + str(s.ref("q")),
        lambda s: "a %s" % s.ref("q"),  # noqa: UP031
        lambda s: "{}".format(var("q")),
    ],
)
def test_an_expression_made_a_text(write):
    refused(lambda s: (add(s, gen("q")), add(s, write(s))), "has no text yet")


def test_the_repr_of_a_reference_is_short():
    def body(s):
        s += gen("q")
        return repr(s.ref("q"))

    assert function(body).run(backend=MockBackend()).ret_value == "<reference to 'q'>"


def test_a_state_in_an_f_string():
    refused(lambda s: add(s, f"a {s}"), "read a variable of it with s[name]")
    state = function(lambda s: None).run(backend=MockBackend())
    assert f"{state}" == "<State of <lambda>>"


@pytest.mark.parametrize("look", [lambda r: r.upper(), lambda r: r.text])
def test_attributes_of_a_reference(look):
    with pytest.raises(AttributeError, match=r"Reference has no text yet.*read s\[name\]"):
        function(lambda s: (add(s, gen("q")), look(s.ref("q")))).run(backend=MockBackend())


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "without `s +=`"),
        (5, "write str(5)"),
        (["a"], "append its parts one by one"),
        ({"a": 1}, "json.dumps"),
        (gen, "call it, s += gen(...)"),
        (function(add), "call it, s += add(...)"),
        (var("x") == "y", "bough.when(condition"),
        (bough.tool(name="t")(lambda: "x"), "bough.use(name, tool"),
    ],
)
def test_what_cannot_be_appended(value, said):
    refused(lambda s: add(s, value), said)


def test_s_plus_without_the_equals_sign():
    refused(lambda s: s + gen("x"), "appended to with s += ...")


def test_conditions_that_python_would_decide():
    for decide in (
        lambda: var("n") == 1 and var("n") == 2,
        lambda: not (var("n") > 1),
        lambda: var("n") in (1, 2),
        lambda: 1 < var("n") < 5,
    ):
        refused(
            lambda s, decide=decide: (add(s, gen("n", int)), add(s, when(decide(), "x"))), "combined with &, | and ~"
        )


def test_a_variable_is_no_expression():
    def body(s):
        s["x"] = gen("y")

    refused(body, "s += ..., with the name 'x'")
    refused(lambda s: s.set_var(5, "y"), "a variable's name is text, got 5")


def test_a_branch_that_there_is_not():
    with pytest.raises(IndexError, match="no branch 5: the fork has 2"):
        function(lambda s: s.fork(2)[5]).run(backend=MockBackend())

    def body(s):
        branches = s.fork(2)
        branches[0] += gen("a")
        return branches["a"]

    refused(body, "there is no variable 'a' in branch 2")


def test_get_has_no_default():
    state = function(lambda s: add(s, gen("a"))).run(backend=MockBackend())
    with pytest.raises(bough.RequestError, match="kind must be a type, since there is no default"):
        state.get("a", "none")


# Messages


def test_messages_in_messages():
    refused(lambda s: add(s, user(assistant("x"))), "an assistant message cannot begin inside a user message")
    refused(lambda s: add(s, user_begin(), assistant(gen("a"))), "cannot begin inside a user message")

    def with_the_wrong_word(s):
        with system():
            s += "x"

    refused(with_the_wrong_word, "write `with s.user():`")
    refused(lambda s: add(s, user(5)), "a message contains text and expressions, got int")  # type: ignore[arg-type]


# Calls of other programs


@function
def shots(s, text="x"):
    s += f"<{text}>" + gen("shot")
    return "returned"


def test_a_call_that_was_appended_is_read_where_it_was_recorded():
    seen = []

    @function
    def outer(s):
        s["shot"] = "before"
        call = shots("a")
        s += call
        s += gen("shot")
        seen.extend([call["shot"], s["shot"], call.values(), call.ret_value, call.history("shot")])
        refused_here = pytest.raises(ProgramError, match="appended to another")
        with refused_here:
            call += "more"

    backend = MockBackend({"shot": ["1", "2", "3"]})
    assert outer.run(backend=backend).text() == "<a>12"
    assert seen == ["1", "2", {"shot": "1"}, "returned", ["1", "2"]]
    assert len(backend.requests) == 1


def test_a_call_that_was_appended_twice_was_recorded_twice_and_is_not_read():
    def outer(s):
        call = shots()
        s += call
        s += call
        assert (s["shot"], s.text()) == ("2", "<x>1<x>2")
        call["shot"]

    refused(outer, "was appended 2 times", shot=["1", "2", "3"])


def test_a_call_that_was_read_is_not_appended():
    def outer(s):
        call = shots()
        assert call["shot"] == "1"
        s += call

    refused(outer, "read from it, and append what you read", shot=["1", "2"])


def test_a_call_is_appended_to_each_branch():
    @function
    def outer(s):
        branches = s.fork(2)
        branches += shots("a")
        branches.join("append")

    state = outer.run(backend=MockBackend({"shot": ["1", "2"]}))
    assert (state.text(), state["shot"]) == ("<a>1<a>2", ["1", "2"])


def test_a_call_in_a_block_is_read_after_it():
    @function
    def outer(s):
        call = shots()
        s += select("k", ["a", "b"])
        s += when(var("k") == "a", call)
        return call["shot"]

    assert outer.run(backend=MockBackend({"k": "a", "shot": "1"})).ret_value == "1"
    assert outer.run(backend=MockBackend({"k": "b", "shot": "1"})).ret_value is None


def test_a_call_that_nobody_uses_is_warned_of():
    @function
    def forgets(s):
        shots()
        s += gen("x")

    with pytest.warns(UserWarning, match=r"shots\(\.\.\.\) was neither appended nor read from") as told:
        forgets.run(backend=MockBackend())
    assert told[0].filename == __file__

    @function
    def returns(s):
        s += shots()
        return shots()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        returns.run(backend=MockBackend())


# Coroutines


def both_ways(body):
    """Errors of a program that is run, and awaited."""
    program = function(body)
    with pytest.raises(ProgramError) as run:
        program.run(backend=MockBackend())
    with pytest.raises(ProgramError) as arun:
        asyncio.run(program.arun(backend=MockBackend()))
    for error in (run.value, arun.value):
        assert error.place is not None
        assert error.place.file == __file__
    return [run.value.message, arun.value.message]


@function
async def waits(s):
    s += gen("a")
    return await s.aget("a")


def in_a_text(s):
    s += gen("a")
    s += f"{s.aget('a')}"


def appended(s):
    s += gen("a")
    s += s.aget("a")


def as_a_statement(s):
    s += gen("a")
    s.aget("a")


def a_program_as_a_statement(s):
    waits(s)  # type: ignore[unused-coroutine]


async def a_program_as_a_statement_of_a_coroutine(s):
    waits(s)  # type: ignore[unused-coroutine]


async def settles(s):
    s += gen("a")
    s.asettle()


async def reads_as_a_plain_function(s):
    s += gen("a")
    return s["a"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (lambda s: (add(s, gen("a")), s.aget("a"))[1], "s.aget('a') was never awaited"),
        (in_a_text, "a plain function reads with s[name]"),
        (appended, "not awaited: await it, or in a plain function read with s[name]"),
        (as_a_statement, "s.aget('a') was never awaited"),
        (a_program_as_a_statement, "make the body an `async def`, and write `await waits(s, ...)`"),
        (a_program_as_a_statement_of_a_coroutine, "write `await waits(s, ...)`"),
        (settles, "write `await s.asettle()`"),
        (reads_as_a_plain_function, "read with `await s.aget(name)`"),
        (lambda s: (x for x in "ab"), "returned a generator that never runs"),
    ],
)
def test_what_is_not_awaited(body, said):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Python's own, of coroutines that were discarded
        for message in both_ways(body):
            assert said in message


def test_a_coroutine_function_behind_a_decorator():
    def plain(body):
        @functools.wraps(body)
        def called(*args):
            return body(*args)

        return called

    @plain
    async def hidden(s):
        s += gen("a")

    for message in both_ways(hidden):
        assert "hidden returned a coroutine that never runs" in message


def test_what_is_awaited_later_is_no_mistake():
    @function
    async def program(s):
        s += gen("a") + gen("b")
        task = asyncio.create_task(s.aget("a"))
        both = await asyncio.gather(*(s.aget("b") for _ in range(100)))
        return await task, both[0]

    assert asyncio.run(program.arun(backend=MockBackend())).ret_value == ("(a)", "(b)")


def test_a_body_with_a_yield():
    def body(s):
        yield gen("a")

    with pytest.raises(ProgramError, match="has a `yield`"):
        function(body)


# Errors of the backend


def test_a_join_of_a_branch_that_was_cancelled_names_the_line():
    @function
    def program(s):
        branches = s.fork(2)
        branches += gen("x")
        branches[1].cancel()
        branches.join()

    with pytest.raises(ProgramError, match="branch 2 was cancelled") as caught:
        program.run(backend=MockBackend())["x"]
    assert caught.value.place is not None
    assert caught.value.place.line == program.body.__code__.co_firstlineno + 4


def test_a_tool_that_there_is_not_names_the_line_that_uses_it():
    def program(s):
        s += gen("a") + gen("b")
        s += bough.use("c", "look_up", topic="x")

    error = refused(program, "look_up")
    assert (error.code, error.place and error.place.line) == ("unknown_tool", program.__code__.co_firstlineno + 2)


def test_a_program_that_was_not_recorded_names_its_first_line(tmp_path):
    @function
    def program(s, x: str):
        s += x + gen("a")
        s += gen("b")

    path = tmp_path / "tape.jsonl"
    with bough.Cassette(path, MockBackend()) as tape:
        program.run("one", backend=tape)
    with bough.Cassette(path, mode="replay") as tape, pytest.raises(ProgramError) as caught:
        program.run("two", backend=tape)
    assert caught.value.code == "not_recorded"
    assert caught.value.place is not None
    assert caught.value.place.line == program.body.__code__.co_firstlineno + 2
