"""The outcome of a run: its returned value, its text, its error, and seeds that are not the same for equal parts."""

from __future__ import annotations

from typing import Any

import pytest

from bough.lang.api import function, gen
from bough.lang.backends.mock import MockBackend
from bough.lang.diagnostics.errors import ProgramError
from bough.runtime.protocol.program import Gen, Text


@function
def label(s, text):
    s += str(text) + gen("answer")
    if text == "bad":
        raise ValueError("bad item")
    return s["answer"].upper()


def seeds_of(backend: MockBackend) -> list[int | None]:
    return [op.sampling.seed for program in backend.requests for op in program.ops if isinstance(op, Gen)]


# Seeds


def drawn(body: Any, **options: Any) -> list[int | None]:
    backend = MockBackend()
    function(body).run(backend=backend, **options)
    return seeds_of(backend)


def test_branches_of_a_fork_draw_apart_from_an_inherited_seed():
    def vote(s):
        for branch in s.fork(5):
            branch += gen("x")

    seeds = drawn(vote, seed=1)
    assert len(set(seeds)) == 5
    assert all(seed is not None and 0 <= seed < 1 << 53 for seed in seeds)
    assert drawn(vote, seed=1) == seeds != drawn(vote, seed=2)
    assert drawn(vote) == [None] * 5


def test_copies_in_a_loop_draw_apart():
    def body(s):
        for _ in range(4):
            with s.copy() as aside:
                aside += gen("x")
        s += gen("x")

    seeds = drawn(body, seed=1)
    assert len(set(seeds)) == 5
    assert seeds[-1] == 1


def test_forks_of_forks_draw_apart():
    def body(s):
        for branch in s.fork(2):
            for twig in branch.fork(2):
                twig += gen("x")

    assert len(set(drawn(body, seed=1))) == 4


def test_a_seed_of_a_generation_is_exact():
    def body(s):
        for branch in s.fork(3):
            branch += gen("x", seed=7)

    assert drawn(body, seed=1) == [7, 7, 7]


def test_equal_items_of_a_batch_draw_apart():
    for how in ({}, {"num_threads": 2}):
        backend = MockBackend()
        label.run_batch(["same"] * 4, backend=backend, seed=3, **how)
        seeds = seeds_of(backend)
        assert len(set(seeds)) == 4
        assert 3 in seeds  # the first is what `run` draws
    backend = MockBackend()
    label.run_batch([{"text": "same", "seed": 3}] * 2, backend=backend, seed=1)
    assert seeds_of(backend) == [3, 3]


def test_calls_of_another_program_draw_apart():
    def body(s):
        return [label("same")["answer"] for _ in range(3)]

    assert len(set(drawn(body, seed=3))) == 3


# What the body has returned


def failed_state() -> Any:
    (state,) = label.run_batch(["bad"], backend=MockBackend())
    return state


def test_the_returned_value_of_a_failed_run_is_its_error():
    with pytest.raises(ProgramError, match="bad item"):
        print(failed_state().ret_value)
    with pytest.raises(ProgramError) as raised:
        function(lambda s: s.__iadd__(gen("x"))).run(backend=MockBackend({"x": ProgramError("no answer")}))
    with pytest.raises(ProgramError, match="no answer"):
        print(raised.value.state.ret_value)
    assert label.run("a", backend=MockBackend()).ret_value == "(ANSWER)"


def test_a_branch_has_returned_nothing():
    with pytest.raises(AttributeError, match="ret_value"):
        function(lambda s: s.fork(1)[0].ret_value).run(backend=MockBackend())


# Texts


def test_the_text_of_a_state_has_its_values_or_its_error():
    assert repr(label.run("a", backend=MockBackend())) == "<State of label: answer='(answer)'>"
    assert repr(failed_state()) == "<State of label, failed: bad item>"
    assert len(repr(label.run("a", backend=MockBackend({"answer": "x" * 9999})))) < 250


def test_the_text_of_a_state_that_runs_says_so_and_asks_for_nothing():
    backend = MockBackend()
    seen = []

    def body(s):
        s += "a" + gen("x")
        seen.append((repr(s), len(backend.requests)))

    function(body).run(backend=backend)
    assert seen == [("<State of body, recorded, not sent>", 0)]


def test_a_batch_tells_how_many_have_failed():
    states = label.run_batch(["a", "bad", "b"], backend=MockBackend())
    ((index, error),) = states.failed
    assert (index, str(error)) == (1, "bad item")
    assert repr(states).startswith("<3 states, 1 failed (the first is [1]: bad item)>\n  <State of label: ")
    assert repr(label.run_batch(["a"] * 30, backend=MockBackend())).endswith("\n  and 22 more")


# Items


def test_a_list_is_the_value_of_the_only_parameter():
    backend = MockBackend()
    assert not label.run_batch([["a"], ["b", "c"]], backend=backend).failed
    assert sorted(str(op.parts[0]) for program in backend.requests for op in program.ops if isinstance(op, Text)) == [
        "['a']",
        "['b', 'c']",
    ]
    assert not label.run_batch([("a",)], backend=backend).failed
    two = function(lambda s, a, b: label.body(s, a + b))
    assert not two.run_batch([["a", "b"]], backend=backend).failed


@pytest.mark.parametrize("batch", [{"text": "a"}, "abc"])
def test_one_item_is_no_batch(batch):
    with pytest.raises(ProgramError, match="run_batch takes a list of items, got a"):
        label.run_batch(batch, backend=MockBackend())
