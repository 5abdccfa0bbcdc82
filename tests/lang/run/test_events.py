"""All events of a run: with `for` and `async for`, left early, mixed, plain and coroutine bodies."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from typing import Any

import pytest

from bough.lang.api import function, gen
from bough.lang.backends.mock import MockBackend
from bough.lang.diagnostics.errors import ProgramError
from bough.runtime.protocol.program import Delta, Done, Value

from ..fakes import FakeBackend, value


@function
def plain(s):
    s += gen("x")
    return s["x"]


@function
async def coroutine(s):
    s += gen("x")
    return await s.aget("x")


def names(events) -> list[str]:
    return [type(event).__name__ for event in events]


def endless() -> FakeBackend:
    return FakeBackend(lambda p: iter([Delta(0, "x", "h"), threading.Event(), Done()]))


@pytest.mark.parametrize("program", [plain, coroutine])
def test_for_and_async_for(program):
    with program.stream(backend=MockBackend({"x": "one two"})) as events:
        assert names(events) == ["Delta", "Delta", "Value", "Done"]
    assert events.state.ret_value == "one two"

    async def main() -> None:
        async with program.stream(backend=MockBackend({"x": "one two"})) as events:
            assert names([event async for event in events]) == ["Delta", "Delta", "Value", "Done"]
        assert events.state.ret_value == "one two"
        events = program.astream(backend=MockBackend({"x": "one two"}))
        assert isinstance([event async for event in events][2], Value)

    asyncio.run(main())


def test_nothing_runs_before_the_first_event_is_asked_for():
    backend = MockBackend()
    events = plain.stream(backend=backend)
    with pytest.raises(ProgramError, match="has not begun"):
        _ = events.state
    events.close()
    assert backend.requests == []
    with pytest.raises(ProgramError, match="no backend"):
        plain.stream()


@pytest.mark.parametrize("program", [plain, coroutine])
@pytest.mark.parametrize("how", ["close", "with", "drop"])
def test_leaving_a_for_loop_stops_the_program(program, how):
    backend = endless() if program is coroutine else FakeBackend(trickle)
    events = program.stream(backend=backend)
    for event in events:
        assert event == Delta(0, "x", "h")
        break
    state = events.state
    if how == "close":
        events.close()
    elif how == "with":
        with events:
            pass
    else:
        del events
        gc.collect()
    with pytest.raises(ProgramError, match="was left"):
        state["x"]
    deadline = time.monotonic() + 5.0
    while not backend.aborted and time.monotonic() < deadline:
        time.sleep(0.001)
    assert backend.aborted == [backend.requests[0].id]


def trickle(program):
    for _ in range(5000):
        yield Delta(0, "x", "h")
        time.sleep(0.001)


@pytest.mark.parametrize("program", [plain, coroutine])
@pytest.mark.parametrize("how", ["aclose", "close", "with", "drop", "cancel"])
def test_leaving_an_async_for_stops_the_program(program, how):
    backend = endless()

    async def leave() -> None:
        events = program.stream(backend=backend)
        assert await anext(events) == Delta(0, "x", "h")
        if how == "aclose":
            await events.aclose()
        elif how == "close":
            events.close()
        elif how == "with":
            async with events:
                pass
        elif how == "drop":
            del events
            gc.collect()
        else:
            task = asyncio.create_task(anext(events))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        while not backend.aborted:
            await asyncio.sleep(0.001)

    asyncio.run(leave())
    assert backend.aborted == [backend.requests[0].id]


def test_what_the_body_raises_ends_the_stream():
    @function
    def raises(s):
        s += gen("x")
        raise KeyError(s["x"])

    async def main() -> None:
        events = raises.stream(backend=MockBackend({"x": "one"}))
        with pytest.raises(KeyError, match="one"):
            _ = [event async for event in events]

    asyncio.run(main())
    with pytest.raises(ProgramError, match="stopped by KeyError"):
        list(raises.stream(backend=MockBackend({"x": "one"})))


def test_deltas_are_asked_for_where_somebody_may_want_them():
    """A program whose body has ended, and whose state nobody has before it is over, does without."""

    @function
    def unread(s):
        s += gen("x")

    class TakesTools(FakeBackend):
        def run(self, program, tools=()):
            return super().run(program)

    backend = TakesTools(lambda p: iter([value(0, "x", "X"), Done()]))
    unread.run(backend=backend)
    unread.run_batch([{}], backend=backend)
    unread.run_batch([{}], num_threads=1, backend=backend)
    asyncio.run(unread.arun(backend=backend))
    unread.compile().run(backend=backend)
    assert [program.deltas for program in backend.requests] == [False] * 5
    backend.requests.clear()
    plain.run(backend=backend)  # it may stream what it reads

    @function
    def streams(s):
        s += gen("x")
        return s.text_iter("x")

    assert list(streams.run(backend=backend).ret_value) == ["X"]
    unread.run(stream=True, backend=backend).sync()
    list(unread.stream(backend=backend))
    list(unread.compile().stream(backend=backend))
    assert [program.deltas for program in backend.requests] == [True] * 5


def test_the_texts_alone() -> None:
    @function
    def two(s: Any) -> None:
        s += "x" + gen("a") + "-" + gen("b")
        branch = s.fork(1)[0]
        branch += gen("c")

    answers = {"a": "one two", "b": "three", "c": "four"}
    assert "".join(two.stream(backend=MockBackend(answers)).text()) == "one twothree"
    assert "".join(two.stream(backend=MockBackend(answers)).text("c")) == "four"

    async def main() -> str:
        return "".join([text async for text in two.stream(backend=MockBackend(answers)).text("b")])

    assert asyncio.run(main()) == "three"


def test_of_a_value_that_is_asked_for_again_the_answer_comes() -> None:
    @function
    def checked(s: Any) -> None:
        s += "x" + gen("a", check=lambda text: text == "good", retries=1) + gen("b")

    backend = MockBackend({"a": ["bad", "good"], "b": "!"})
    assert list(checked.stream(backend=backend).text()) == ["good", "!"]
    backend = MockBackend({"a": ["bad", "good"], "b": "!"})
    assert list(checked.stream(backend=backend).text("a")) == ["good"]


def test_names_of_texts_are_the_programs_own() -> None:
    @function
    def named(s: Any) -> None:
        s += "x" + gen("a#b") + gen("c") + gen("c")

    answers: dict[str, Any] = {"a#b": "one", "c": ["two", "three"]}
    assert list(named.stream(backend=MockBackend(answers)).text("a#b")) == ["one"]
    assert list(named.stream(backend=MockBackend(answers)).text("c")) == ["two", "three"]


def test_leaving_the_texts_stops_the_program() -> None:
    backend = MockBackend({"x": "a b c"})
    with function(lambda s: s.__iadd__("x" + gen("x"))).stream(backend=backend) as events:
        assert next(events.text()) == "a"
    with pytest.raises(StopIteration):
        next(events)


def test_a_stream_of_a_name_that_there_is_not_raises_at_its_end():
    @function
    def forks(s):
        a, b = s.fork(2)
        a += "x" + gen("first")
        b += "y" + gen("second")

    async def texts(name):
        return [text async for text in forks.stream(backend=MockBackend()).text(name)]

    assert "".join(forks.stream(backend=MockBackend()).text("second")) == "(second)"
    assert "".join(asyncio.run(texts("first"))) == "(first)"
    with pytest.raises(ProgramError, match="there is no variable 'third'"):
        asyncio.run(texts("third"))
    with pytest.raises(ProgramError, match=r"of forked branches.*text\('first'\)"):
        asyncio.run(texts(None))


def test_a_stream_without_text_may_be_empty():
    @function
    def quiet(s):
        s += "x"
        s["y"] = 5

    assert list(quiet.stream(backend=MockBackend()).text()) == []
    assert list(quiet.stream(backend=MockBackend()).text("y")) == []
