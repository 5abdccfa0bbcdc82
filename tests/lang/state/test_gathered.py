"""Lists that joins gather inside of blocks: their history, and references to their elements afterwards."""

from __future__ import annotations

from typing import Any

import pytest

import bough
from bough import MockBackend, ProgramError, function, gen, repeat_until, select, use, var, when


def run(body: Any, **answers: Any) -> Any:
    return function(body).run(backend=MockBackend(answers))


def two(s: Any) -> None:
    branches = s.fork(2)
    branches += gen("c")
    branches.join()


def test_the_history_of_what_a_loop_gathers() -> None:
    def turn(s: Any) -> None:
        two(s)
        s += gen("v")

    state = run(lambda s: s.__iadd__(repeat_until(var("v") == "stop", turn)), c=list("abcdef"), v=["x", "y", "stop"])
    assert state.history("c") == [["a", "b"], ["c", "d"], ["e", "f"]]
    assert state["c"] == state.history("c")[-1]
    assert state.history("v") == ["x", "y", "stop"]


def test_the_history_outside_of_loops() -> None:
    def body(s: Any) -> None:
        s += gen("c")
        two(s)
        outer = s.fork(2)
        for branch in outer:
            two(branch)
        outer[0]["own"] = 1
        outer.join()
        s += gen("c")

    state = run(body, c=list("abcdefgh"))
    assert state.history("c") == ["a", ["b", "c"], [["d", "e"], ["f", "g"]], "h"]
    assert state["own"] == [1, None]
    assert state.history("own") == []


def test_typed_values_and_samples_in_it() -> None:
    def body(s: Any) -> None:
        branches = s.fork(2)
        branches[0] += gen("n", int)
        branches[1] += gen("n", n=2)
        branches.join()

    assert run(body, n=["1", "a", "b"]).history("n") == [[1, ["a", "b"]]]


def test_branches_that_fail_alone() -> None:
    @bough.tool
    def unsteady(x: str) -> str:
        if x == "bad":
            raise ValueError("no")
        return x

    def body(s: Any) -> None:
        branches = s.fork(2, isolated=True)
        branches[0] += use("u", unsteady, x="bad")
        branches[1] += use("u", unsteady, x="good")
        branches.join(errors="value")

    history = run(body).history("u")
    assert [[type(value) for value in values] for values in history] == [[ProgramError, str]]


@pytest.mark.parametrize(("kind", "text"), [("a", "a[x][y][y]z"), ("b", "b[][][]z")])
def test_elements_of_a_list_that_one_block_gathers(kind: str, text: str) -> None:
    def body(s: Any) -> None:
        s += select("kind", ["a", "b"])
        s += when(var("kind") == "a", two)
        s += "[" + s.ref("c", 0) + "][" + s.ref("c", 1) + "][" + s.ref("c", -1) + "]" + gen("end")

    state = run(body, kind=kind, c=["x", "y"], end="z")
    assert state.text() == text
    assert state["c"] == (["x", "y"] if kind == "a" else None)


def test_elements_of_a_list_that_two_blocks_gather_in_conditions() -> None:
    def three(s: Any) -> None:
        branches = s.fork(3)
        branches += gen("c")
        branches.join()

    def body(s: Any) -> None:
        s += select("kind", ["a", "b"])
        s += when(var("kind") == "a", lambda s: s.__iadd__(when(var("kind") == "a", two)), three)
        s += when(s.ref("c", 2) == "r", "three", when(s.ref("c", 1) == "q", "two", "none"))

    assert run(body, kind="a", c=["p", "q"]).text() == "atwo"
    assert run(body, kind="b", c=["p", "q", "r"]).text() == "bthree"


def test_a_read_between_the_block_and_the_reference() -> None:
    def body(s: Any) -> None:
        s += select("kind", ["a", "b"])
        s += when(var("kind") == "a", two)
        if s["c"] == ["x", "y"]:
            s += "=" + s.ref("c", 0)

    assert run(body, kind="a", c=["x", "y"]).text() == "a=x"
    assert run(body, kind="b").text() == "b"


def test_the_whole_list_is_no_text() -> None:
    def body(s: Any) -> None:
        s += select("kind", ["a", "b"])
        s += when(var("kind") == "a", two)
        s += s.ref("c")

    with pytest.raises(ProgramError, match=r"s.ref\('c', index\)") as caught:
        run(body)
    assert caught.value.place is not None
    assert caught.value.place.file == __file__
