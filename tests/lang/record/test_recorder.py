"""Recordings of bodies, and the number of requests that become of them."""

from __future__ import annotations

import pytest

from bough.lang.api import assistant, function, gen, select, system, user
from bough.lang.backends.mock import MockBackend
from bough.lang.diagnostics.errors import ProgramError, UnsupportedError
from bough.runtime.protocol.program import Fork, Gen, Join, Ref, RoleBegin, RoleEnd, Select, Text

from ..fakes import kinds


def record(body, answers=None, **options):
    """The programs that a body sends."""
    backend = MockBackend(answers)
    function(body).run(backend=backend, **options)
    return backend.requests


def test_a_program_without_reads_is_one_request():
    def body(s):
        s += system("Be brief.") + user("Hello")
        branches = s.fork(3)
        for branch in branches:
            for index in range(4):
                branch += f"{index}: " + gen(f"x{index}")
        branches.join()
        s += assistant(gen("last"))

    (program,) = record(body)
    assert not program.keep and not program.resume
    assert sum(isinstance(op, Gen) for op in program.ops) == 13


def test_reading_ends_a_submission_and_the_next_continues_it():
    def body(s):
        s += "A" + gen("a")
        s += s["a"] + "B" + gen("b")
        assert s["b"] == "two"
        s += "C" + gen("c")

    first, second, third = record(body, {"a": "one", "b": "two"})
    assert [(p.keep, p.resume) for p in (first, second, third)] == [(True, False), (True, True), (False, True)]
    assert len({p.id for p in (first, second, third)}) == 1
    assert len(first.id) == 32
    assert second.ops[0] == Text(0, ("oneB",))


def test_a_value_that_is_there_sends_nothing():
    def body(s):
        s += gen("a") + gen("b")
        assert s["a"] == "(a)"
        s += "more"
        assert (s["a"], s["b"]) == ("(a)", "(b)")
        s += gen("c")

    assert [kinds(program) for program in record(body)] == [["Gen", "Gen"], ["Text", "Gen"]]


def test_neighbouring_text_of_a_branch_is_one_instruction():
    def body(s):
        s += "a"
        s += "b" + gen("x")
        left, right = s.fork(2)
        left += "1"
        right += "2"
        left += ""
        left += "3"
        right += gen("y")

    (program,) = record(body)
    assert program.ops[0] == Text(0, ("ab",))
    assert program.ops[3:5] == (Text(1, ("13",)), Text(2, ("2",)))


def test_nothing_to_generate_is_no_request():
    backend = MockBackend()

    @function
    def plain(s):
        s += "only text"
        s["x"] = 3

    state = plain.run(backend=backend)
    assert backend.requests == []
    assert (state.text(), state["x"]) == ("only text", 3)
    assert backend.requests == []


def test_text_with_roles_is_asked_of_the_backend_even_after_the_end():
    backend = MockBackend()
    state = function(lambda s: s.user("Hi")).run(backend=backend)
    assert state.text() == "<|user|>\nHi<|end|>\n"
    assert [program.keep for program in backend.requests] == [False]


def test_a_kept_state_with_nothing_left_to_do_is_dropped():
    backend = MockBackend()

    def body(s):
        s += gen("x")
        assert s["x"] == "(x)"

    function(body).run(backend=backend)
    assert backend.dropped == [backend.requests[0].id]


def test_a_reference_reads_nothing():
    def body(s):
        s += "Title: " + gen("title")
        (child,) = s.fork(1)
        child += "About " + s.ref("title") + ":" + gen("text")
        s += "[" + child.ref("text") + "]"
        s["alias"] = s.ref("title")
        s += s.ref("alias") + gen("end")

    (program,) = record(body)
    assert program.ops[3] == Text(1, ("About ", Ref(0, "title"), ":"))
    assert program.ops[5] == Text(0, ("[", Ref(1, "text"), "]", Ref(0, "title")))


def test_a_reference_to_a_plain_value_is_its_text():
    def body(s):
        s["n"] = 7
        s += "n=" + s.ref("n") + gen("x")

    (program,) = record(body)
    assert program.ops[0] == Text(0, ("n=7",))


def test_a_reference_to_a_gathered_list_needs_an_index():
    def body(s):
        branches = s.fork(2)
        branches += gen("x")
        branches.join()
        with pytest.raises(ProgramError, match="is a list"):
            s += s.ref("x")
        with pytest.raises(ProgramError, match="no element 2"):
            s.ref("x", 2)
        s += s.ref("x", 1)

    (program,) = record(body)
    assert program.ops[-1] == Text(0, (Ref(2, "x"),))


def test_a_name_generated_again_is_sent_under_another():
    seen = []

    def body(s):
        for _ in range(3):
            s += gen("x")
            seen.append(s["x"])
        s += s.ref("x")

    programs = record(body, {"x": ["one", "two", "three"]})
    assert seen == ["one", "two", "three"]
    assert [program.ops[0].name for program in programs[:3]] == ["x", "x#2", "x#3"]
    assert programs[3].ops[0] == Text(0, (Ref(0, "x#3"),))


def test_generations_without_a_name_get_one_each():
    (program,) = record(lambda s: s.__iadd__(gen() + select(choices=["a", "b"]) + gen()))
    assert [op.name for op in program.ops] == ["gen_0", "select_1", "gen_2"]


def test_roles_nested_as_calls_begin_end_and_blocks_are_the_same():
    from bough.lang import api

    def calls(s):
        s += user("Q") + assistant("A: " + gen("x"))

    def marks(s):
        s += api.user_begin()
        s += "Q" + api.user_end()
        s += api.assistant_begin() + "A: " + gen("x") + api.assistant_end()

    def blocks(s):
        with s.user():
            s += "Q"
        with s.assistant():
            s += "A: "
            s += gen("x")

    def methods(s):
        s.user("Q")
        s.assistant("A: " + gen("x"))

    expected = (
        RoleBegin(0, "user"), Text(0, ("Q",)), RoleEnd(0), RoleBegin(0, "assistant"), Text(0, ("A: ",)),
    )  # fmt: skip
    for body in (calls, marks, blocks, methods):
        (program,) = record(body)
        assert program.ops[:5] == expected
        assert isinstance(program.ops[5], Gen) and program.ops[6] == RoleEnd(0)


@pytest.mark.parametrize(
    "body",
    [
        lambda s: s.user(user("inner")),
        lambda s: s.__iadd__(user("a" + assistant("b"))),
    ],
)
def test_a_role_inside_a_role_is_refused(body):
    with pytest.raises(ProgramError, match="cannot begin inside a user message") as caught:
        record(body)
    assert caught.value.place is not None and caught.value.place.file == __file__


def test_ending_what_is_not_open_is_refused():
    from bough.lang.api import assistant_end, user_begin, user_end

    with pytest.raises(ProgramError, match="no message is open"):
        record(lambda s: s.__iadd__(user_end()))
    with pytest.raises(ProgramError, match="a user message is open"):
        record(lambda s: s.__iadd__(user_begin() + assistant_end()))


def test_fork_and_join_are_instructions():
    def body(s):
        s += "x"
        branches = s.fork(2)
        branches += gen("y")
        branches.join("append")
        s += select("z", ["a", "b"])

    (program,) = record(body)
    assert program.ops[1] == Fork(0, (1, 2))
    assert program.ops[4] == Join(0, (1, 2), "append")
    assert program.ops[5] == Select(0, "z", ("a", "b"))


def test_sampling_of_a_gen_goes_over_that_of_the_run():
    def body(s):
        s += gen("a") + gen("b", temperature=0.5, stop=["x", "y"], max_tokens=5, return_logprob=True)

    (program,) = record(body, temperature=0.0, max_new_tokens=9, seed=3)
    first, second = (op.sampling for op in program.ops)
    assert (first.temperature, first.max_tokens, first.seed, first.logprobs) == (0.0, 9, 3, None)
    assert (second.temperature, second.max_tokens, second.seed, second.logprobs) == (0.5, 5, 3, 0)
    assert second.stop == ("x", "y")
    (program,) = record(body)
    assert (program.ops[0].sampling.temperature, program.ops[0].sampling.max_tokens) == (1.0, 128)


def test_what_holds_for_the_whole_run_goes_with_every_submission():
    def body(s):
        s += gen("a")
        s += s["a"] + gen("b")

    programs = record(body, namespace="tenant", timeout_s=5.0, trace=True)
    assert [(p.namespace, p.trace) for p in programs] == [("tenant", True)] * 2
    assert all(p.timeout_s is not None and 0 < p.timeout_s <= 5.0 for p in programs)


def test_nothing_can_be_appended_after_the_end():
    backend = MockBackend()
    kept = []

    def body(s):
        s += gen("x")
        kept.append(s)

    state = function(body).run(backend=backend)
    with pytest.raises(ProgramError, match="the program has ended") as caught:
        kept[0] += "more"
    assert caught.value.place is not None and caught.value.place.file == __file__
    assert state["x"] == "(x)"


def test_nothing_can_be_appended_to_a_joined_branch_or_after_a_block():
    def body(s):
        branches = s.fork(2)
        branches += gen("x")
        branches.join()
        with pytest.raises(ProgramError, match="it has been joined"):
            branches[0].__iadd__("more")
        with pytest.raises(ProgramError, match="it has been joined"):
            branches.join()
        with s.copy() as scratch:
            scratch += gen("y")
            assert scratch["y"] == "(y)"
        with pytest.raises(ProgramError, match="it has been joined"):
            scratch += "more"
        assert s["y"] == ["(y)"]

    record(body)


@pytest.mark.parametrize("thing", [None, 3, ["a"]])
def test_only_text_and_expressions_can_be_appended(thing):
    with pytest.raises(ProgramError, match="can be appended, got"):
        record(lambda s: s.__iadd__(thing))


def test_an_expression_has_no_text_for_an_f_string():
    def body(s):
        s += f"x {gen('x')}"

    with pytest.raises(ProgramError, match="cannot be used in an f-string"):
        record(body)


def test_an_image_is_refused_before_any_work():
    from bough.lang.api import image

    backend = MockBackend()
    with pytest.raises(UnsupportedError, match="MockBackend takes text, not images") as caught:
        function(lambda s: s.user(image("cat.png") + gen("x"))).run(backend=backend)
    assert backend.requests == []
    assert caught.value.param == "image"


def test_a_reference_of_another_program_is_refused():
    backend = MockBackend()
    other = function(lambda s: s.__iadd__(gen("x"))).run(backend=backend)
    with pytest.raises(ProgramError, match="belongs to another program"):
        function(lambda s: s.__iadd__(other.ref("x"))).run(backend=backend)


@pytest.mark.parametrize("size", [0, -1])
def test_a_fork_needs_a_branch(size: int):
    with pytest.raises(ProgramError, match="takes the number of branches"):
        record(lambda s: s.fork(size))
