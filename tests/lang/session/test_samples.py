"""Branches that fail alone, are begun anew or cancelled, and those that go on from samples."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import bough
from bough.lang.api import assistant, function, gen, user
from bough.lang.backends.mock import MockBackend
from bough.lang.diagnostics.errors import ProgramError
from bough.runtime.protocol.errors import ErrorInfo
from bough.runtime.protocol.program import BranchFailed, BranchRestarted, Cancel, Delta, Done, Failed, Fork, Gen, Join
from bough.runtime.protocol.sampling_params import derive

from ..fakes import FakeBackend, value

BAD = ErrorInfo(code="tool_failed", message="it broke")


def two_branches(s, **options):
    s += "Q"
    branches = s.fork(2, **options)
    branches += gen("x")
    return branches


def failing(branch: int = 2):
    """One of two branches fails."""

    def script(program):
        index = next((i for i, op in enumerate(program.ops) if isinstance(op, Gen) and op.branch == branch), None)
        for op in program.ops:
            if isinstance(op, Gen) and op.branch != branch:
                yield value(op.branch, op.name, f"ok {op.branch}")
        if index is not None:
            yield BranchFailed(branch=branch, error=BAD, index=index)
        yield Done(texts={0: "the text", 1: "another"})

    return FakeBackend(script)


def test_isolation_is_recorded():
    backend = MockBackend()
    function(lambda s: two_branches(s, isolated=True, retries=2).join()).run(backend=backend)
    (program,) = backend.requests
    assert program.ops[1] == Fork(0, (1, 2), isolated=True, retries=2)


@pytest.mark.parametrize("options", [{"retries": 1}, {"isolated": True, "retries": -1}])
def test_retries_need_isolation(options):
    with pytest.raises(ProgramError, match="retries must be"):
        function(lambda s: two_branches(s, **options)).run(backend=MockBackend())


def test_a_branch_that_fails_ends_alone():
    seen = []

    @function
    def body(s):
        branches = two_branches(s, isolated=True)
        seen.append(branches[0]["x"])
        with pytest.raises(ProgramError, match="it broke") as caught:
            branches[1]["x"]
        seen.append(caught.value)
        s += gen("after")

    state = body.run(backend=failing())
    first, error = seen
    assert (first, error.code, error.branch, error.state) == ("ok 1", "tool_failed", 2, state)
    assert error.place is not None and error.place.function == "two_branches"
    assert [place.function for place in error.stack] == ["body", "two_branches"]
    assert isinstance(error.instruction, Gen) and error.request_id is not None
    assert state["after"] == "ok 0"
    assert state.error() is None


def test_errors_of_branches_are_raised_or_stand_in_the_list():
    raised = function(lambda s: two_branches(s, isolated=True).join()).run(backend=failing())
    with pytest.raises(ProgramError, match="it broke"):
        raised["x"]
    state = function(lambda s: two_branches(s, isolated=True).join(errors="value")).run(backend=failing())
    first, error = state["x"]
    assert first == "ok 1"
    assert isinstance(error, ProgramError) and error.code == "tool_failed"
    assert state["x"][1] is error

    async def later():
        return await state.aget("x")

    assert asyncio.run(later()) == [first, error]
    with pytest.raises(ProgramError, match='"raise" or "value"'):
        function(lambda s: two_branches(s).join(errors="drop")).run(backend=MockBackend())


def test_the_text_of_a_branch_that_failed_is_not_appended():
    def body(s):
        with s.user():
            two_branches(s, isolated=True).join("append")
            s += "!"

    state = function(body).run(backend=failing())
    assert state.messages() == [{"role": "user", "content": "Qok 1!"}]
    assert state.text() == "the text"


def test_what_was_forked_from_a_branch_that_fails_fails_with_it():
    def body(s):
        (branch,) = s.fork(1, isolated=True)
        branch += "A"
        (inner,) = branch.fork(1)
        inner += gen("x")
        with pytest.raises(ProgramError, match="it broke"):
            inner["x"]
        inner += gen("y")
        with pytest.raises(ProgramError, match="it broke"):
            inner["y"]

    def script(program):
        if not program.resume:
            yield BranchFailed(branch=1, error=BAD)
        yield Done()

    function(body).run(backend=FakeBackend(script))


def test_a_branch_that_begins_anew_forgets_its_values():
    more = threading.Event()

    def script(program):
        yield Delta(1, "x", "half")
        yield value(1, "x", "half a truth")
        yield Delta(1, "y", "no")
        yield BranchRestarted(branch=1, attempt=1, error=BAD)
        yield value(1, "x", "truth")
        yield more
        yield value(1, "y", "yes")
        yield Done()

    def body(s):
        (branch,) = s.fork(1, isolated=True, retries=1)
        branch += gen("x") + gen("y")
        more.set()
        assert branch["y"] == "yes"
        assert branch["x"] == "truth"

    function(body).run(backend=FakeBackend(script))


@pytest.mark.parametrize("how", ["name", "branch", "value", "async", "block"])
def test_the_stream_of_a_branch_that_begins_anew_has_no_text_of_before(how):
    def script(program):
        yield Delta(1, "x", '["an ')
        yield Delta(1, "x", 'old")')
        yield BranchRestarted(branch=1, attempt=1, error=BAD)
        yield Delta(1, "x", '["')
        yield Delta(1, "x", 'new"]')
        yield value(1, "x", '["new"]')
        yield value(1, "y", "end")
        yield Done()

    def stream(s):
        (branch,) = s.fork(1, isolated=True, retries=1)
        branch += "say " + gen("x", list[str]) + gen("y")
        if how == "block":
            branch += bough.when(bough.var("y") == "no", bough.gen("z"))
        return branch.stream("x", partial=True) if how == "value" else branch.text_iter("x" if how == "name" else None)

    def body(s):
        return list(stream(s))

    async def abody(s):
        return [piece async for piece in stream(s)]

    pieces = function(abody if how == "async" else body).run(backend=FakeBackend(script)).ret_value
    if how == "value":
        assert pieces[-1] == ["new"] and "old" not in str(pieces)
    else:
        assert "".join(pieces) == ('["new"]' if how == "name" else 'say ["new"]end')


def test_a_branch_that_a_loop_forks_keeps_the_values_of_earlier_turns():
    calls: list[str] = []

    @bough.tool
    def unsteady(key: str) -> str:
        calls.append(key)
        if len(calls) == 2:
            raise RuntimeError("busy")
        return f"r{len(calls)}"

    def turn(s):
        branches = s.fork(1, isolated=True, retries=1)
        branches += gen("w") + bough.use("v", unsteady, key=bough.var("w"))
        branches.join()
        s += gen("e")

    def body(s):
        s += "x" + bough.repeat_until(bough.times("e") >= 3, turn, at_most=3)

    state = function(body).run(backend=bough.MockBackend())
    assert state.history("v") == [["r1"], ["r3"], ["r4"]]
    assert state.history("w") == [["(w)"]] * 3
    assert state["v"] == ["r4"]


def test_a_cancelled_branch_stops_in_a_submission_of_its_own():
    def script(program):
        if any(isinstance(op, Cancel) for op in program.ops):
            yield BranchFailed(branch=2, error=ErrorInfo(code="cancelled", message="it was cancelled"))
        else:
            yield value(1, "x", "first")
        yield Done()

    backend = FakeBackend(script)

    def body(s):
        branches = two_branches(s)
        assert branches[0]["x"] == "first"
        s += "not sent with it"
        branches[1].cancel()
        with pytest.raises(ProgramError) as caught:
            branches[1]["x"]
        assert caught.value.code == "cancelled"
        with pytest.raises(ProgramError, match="it was cancelled"):
            branches[1].__iadd__("more")
        branches[1].cancel()
        branches.join(errors="value")
        first, error = s["x"]
        assert (first, error.code) == ("first", "cancelled")

    function(body).run(backend=backend)
    assert [program.ops for program in backend.requests[1:2]] == [(Cancel(2),)]
    assert backend.requests[1].resume and backend.requests[1].keep


def test_a_branch_that_was_not_sent_is_cancelled_with_what_forks_it():
    backend = MockBackend()

    def body(s):
        branches = two_branches(s)
        branches[1].cancel()
        branches.join(errors="value")
        s += gen("end")

    state = function(body).run(backend=backend)
    (program,) = backend.requests
    assert program.ops[-1] == Cancel(2) and isinstance(program.ops[4], Join)
    first, error = state["x"]
    assert (first, error.code, state["end"]) == ("(x)", "cancelled", "(end)")


def test_a_branch_can_be_cancelled_from_another_thread():
    begun, may_end = threading.Event(), threading.Event()

    def script(program):
        if any(isinstance(op, Cancel) for op in program.ops):
            may_end.set()
            yield BranchFailed(branch=2, error=ErrorInfo(code="cancelled", message="it was cancelled"))
        else:
            yield value(1, "x", "first")
            begun.set()
            yield may_end
        yield Done()

    kept = []

    def body(s):
        branches = two_branches(s)
        kept.append(branches[1])
        with pytest.raises(ProgramError, match="cancelled"):
            branches[1]["x"]

    def cancel():
        assert begun.wait(10)
        kept[0].cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    function(body).run(backend=FakeBackend(script))
    thread.join(10)
    assert not thread.is_alive()


def test_cancelling_what_has_ended_is_no_error():
    def script(program):
        if any(isinstance(op, Cancel) for op in program.ops):
            yield Failed(error=ErrorInfo(code="state_not_found", message="gone"))
            return
        yield value(1, "x", "a")
        yield value(2, "x", "b")
        yield Done()

    def body(s):
        branches = two_branches(s)
        assert branches["x"] == ["a", "b"]
        branches.cancel()
        assert branches["x"] == ["a", "b"]

    state = function(body).run(backend=FakeBackend(script))
    assert state.error() is None
    state.cancel()
    assert state.error() is None


def test_cancelling_the_program_stops_it():
    backend = FakeBackend(lambda program: iter([value(0, "x", "a"), Delta(0, "y", "b"), Done()]))

    def body(s):
        s += gen("x") + gen("y")
        assert s["x"] == "a"
        s.cancel()

    with pytest.raises(ProgramError) as caught:
        function(body).run(backend=backend)
    assert caught.value.code == "cancelled"
    assert backend.aborted == [backend.requests[0].id]


def test_a_branch_cannot_be_cancelled_in_a_block():
    from bough.lang.control import var, when

    def body(s):
        branches = two_branches(s)
        branches.join()
        s += gen("q") + when(var("q") == "a", lambda s: s.fork(1).cancel())

    with pytest.raises(ProgramError, match="cannot be cancelled while"):
        function(body).run(backend=MockBackend())


# Samples


def test_branches_go_on_from_samples():
    backend = MockBackend({"idea": ["one", "two", "three"], "rating": ["3", "1", "2"]})

    def body(s):
        s += user("Ideas?")
        ideas = s.fork_samples(assistant(gen("idea", temperature=0.9)), 3)
        ideas += user("Rate it.") + assistant(gen("rating", int))
        ideas.join()

    state = function(body).run(backend=backend)
    (program,) = backend.requests
    gens = [op for op in program.ops if isinstance(op, Gen) and op.name == "idea"]
    assert [(op.branch, op.sampling.n, op.sampling.seed) for op in gens] == [(1, 1, None), (2, 1, None), (3, 1, None)]
    assert (state["idea"], state["rating"]) == (["one", "two", "three"], [3, 1, 2])


def test_samples_have_the_seeds_that_several_of_one_generation_have():
    backend = MockBackend()
    function(lambda s: s.fork_samples("a" + gen("x", n=3, seed=7)).join()).run(backend=backend)
    function(lambda s: s.fork_samples(gen("x"), 2).join()).run(backend=backend, seed=5)
    seeds = [[op.sampling.seed for op in program.ops if isinstance(op, Gen)] for program in backend.requests]
    assert seeds == [[derive(7, 0), derive(7, 1), derive(7, 2)], [derive(5, 0), derive(5, 1)]]


@pytest.mark.parametrize(("expression", "n"), [("text", 2), (gen("x"), 0)])
def test_samples_need_something_to_sample(expression, n):
    with pytest.raises(ProgramError, match="sample"):
        function(lambda s: s.fork_samples(expression, n)).run(backend=MockBackend())


# Values


def test_a_variable_can_be_set_after_the_end():
    state = function(lambda s: s.__iadd__(gen("x"))).run(backend=MockBackend())
    state["y"] = 3
    state["z"] = state.ref("x")
    assert (state["y"], state["z"]) == (3, "(x)")


def test_branches_cannot_be_appended_to_from_other_threads() -> None:
    """Reading there would wait for the body, which waits for the thread."""

    @function
    def threaded(s: Any) -> None:
        branch = s.fork(1)[0]

        def work() -> None:
            nonlocal branch
            branch += gen("x")

        with ThreadPoolExecutor(1) as pool:
            pool.submit(work).result(timeout=10)

    with pytest.raises(ProgramError, match="only the thread that runs the program's body"):
        threaded.run(backend=MockBackend())
