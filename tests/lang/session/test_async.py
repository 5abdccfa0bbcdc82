"""Programs on an event loop: plain and coroutine bodies, cancelling, streaming."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from bough.lang.api import assistant, function, gen, user
from bough.lang.backend import use_backend
from bough.lang.backends.mock import MockBackend
from bough.lang.diagnostics.errors import ProgramError
from bough.runtime.protocol.errors import ErrorInfo
from bough.runtime.protocol.program import Delta, Done, Failed

from ..fakes import FakeBackend, value


@function
def capital(s, country):
    """Asks for a capital."""
    s += user(f"Capital of {country}?") + assistant(gen("city"))
    return country.upper()


def test_arun_runs_a_plain_body_with_reads():
    @function
    def two(s):
        s += gen("x")
        s += s["x"] + gen("y")

    backend = MockBackend({"x": "one", "y": "two"})
    state = asyncio.run(two.arun(backend=backend))
    assert (state["x"], state["y"], state.text()) == ("one", "two", "oneonetwo")
    assert [program.resume for program in backend.requests] == [False, True]


def test_arun_runs_a_coroutine_body():
    seen: list[Any] = []

    @function
    async def reads(s, count):
        branches = s.fork(count)
        branches += gen("x")
        seen.append(await asyncio.gather(*(branch.aget("x") for branch in branches)))
        s += "then " + gen("y")
        seen.append("".join([delta async for delta in s.text_async_iter("y")]))
        await s.asettle()
        seen.append(s.text())
        return "end"

    backend = MockBackend({"x": ["a", "b"], "y": "c d"})
    state = asyncio.run(reads.arun(2, backend=backend))
    assert seen == [["a", "b"], "c d", "then c d"]
    assert state.ret_value == "end"
    assert backend.dropped == [backend.requests[0].id]


def test_run_waits_for_a_coroutine_body_where_no_event_loop_is_held_up():
    @function
    async def reads(s):
        s += gen("x")
        return await s.aget("x")

    backend = MockBackend({"x": "one"})
    assert reads.run(backend=backend).ret_value == "one"
    assert [state.ret_value for state in reads.run_batch([(), ()], backend=backend, num_threads=2)] == ["one"] * 2
    assert list(reads.run(backend=backend, stream=True).text_iter("x")) == ["one"]

    async def on_a_loop() -> None:
        reads.run(backend=backend)

    with pytest.raises(ProgramError, match=r"use `await reads\.arun"):
        asyncio.run(on_a_loop())


def test_a_read_that_would_block_the_loop_is_refused():
    @function
    async def blocks(s):
        s += gen("x")
        s["x"]

    with pytest.raises(ProgramError, match=r"await s\.aget"):
        asyncio.run(blocks.arun(backend=MockBackend()))


def test_many_aruns_share_one_loop():
    async def main() -> list[str]:
        backend = MockBackend({"city": lambda prompt, name: prompt.split()[3].partition("?")[0]})
        states = await asyncio.gather(*(capital.arun(f"C{i}", backend=backend) for i in range(50)))
        return [state["city"] for state in states]

    assert asyncio.run(main()) == [f"C{i}" for i in range(50)]


def test_cancelling_arun_is_raised_where_the_body_waits():
    backend = FakeBackend(lambda p: iter([Delta(0, "x", "h"), threading.Event(), Done()]))
    ended = []

    @function
    def waits(s):
        s += gen("x")
        try:
            s["x"]
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def main() -> None:
        task = asyncio.create_task(waits.arun(backend=backend))
        while not backend.requests:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["cancelled"]
        assert backend.aborted == [backend.requests[0].id]

    asyncio.run(main())


def test_a_plain_body_is_on_the_loop_s_thread_and_gives_way_while_it_waits():
    gate = threading.Event()
    backend = FakeBackend(lambda p: iter([gate, value(0, "x", "one"), Done()]))
    threads = set()

    @function
    def waits(s):
        s += gen("x")
        text = s["x"]
        threads.add(threading.get_ident())
        return text

    async def main() -> list[str]:
        num_threads = threading.active_count()
        tasks = [asyncio.create_task(waits.arun(backend=backend)) for _ in range(100)]
        while len(backend.requests) < 100:
            await asyncio.sleep(0.001)
        assert threading.active_count() == num_threads
        gate.set()
        return [(await task).ret_value for task in tasks]

    assert asyncio.run(main()) == ["one"] * 100
    assert threads == {threading.get_ident()}


def test_a_program_within_a_plain_body_does_not_hold_up_the_loop():
    backend = MockBackend({"city": "Paris", "y": "end"})
    ticks: list[None] = []

    @function
    def outer(s):
        inner = capital("France")
        s += inner["city"] + gen("y")
        s["y"]
        texts = [state["city"] for state in capital.run_batch([("a",), ("b",)])]
        some = [event.text for event in capital.stream("c") if isinstance(event, Delta)]
        running = capital.run("d", stream=True)
        return [inner.ret_value, *texts, *some, running["city"], capital.run("e")["city"]]

    async def tick() -> None:
        while True:
            ticks.append(None)
            await asyncio.sleep(0)

    async def main() -> Any:
        beside = asyncio.create_task(tick())
        with use_backend(backend):
            state = await outer.arun()
        beside.cancel()
        return state.ret_value

    assert asyncio.run(main()) == ["FRANCE", "Paris", "Paris", "Paris", "Paris", "Paris"]
    assert len(ticks) > 20


def test_in_a_coroutine_a_program_is_awaited():
    @function
    async def outer(s):
        inner = capital("France")
        with pytest.raises(ProgramError, match=r"use `await capital\(\.\.\.\)`"):
            inner["city"]
        s += await inner.aget("city")
        again = await capital("Japan")
        s += again["city"] + gen("y")
        return inner.ret_value, again.ret_value

    state = asyncio.run(outer.arun(backend=MockBackend({"city": "Paris"})))
    assert state.text() == "ParisParis(y)"
    assert state.ret_value == ("FRANCE", "JAPAN")


def test_calling_a_coroutine_body_gives_something_to_await():
    @function
    async def river(s, city):
        s += f"{city}:" + gen("river")
        return await s.aget("river")

    async def main() -> str:
        state = await river("Paris", backend=MockBackend({"river": "Seine"}))
        return str(state.ret_value)

    assert asyncio.run(main()) == "Seine"


def test_a_program_is_read_by_others_on_the_same_loop():
    async def main() -> list[str]:
        events = capital.stream("X", backend=MockBackend({"city": "New York"}))
        await anext(events)
        seen = [delta async for delta in events.state.stream("city")]
        return [*seen, await events.state.aget("city")]

    assert asyncio.run(main()) == ["New", " York", "New York"]


def test_arun_raises_failures_and_exceptions():
    failed = Failed(error=ErrorInfo(code="x", message="broke"))
    with pytest.raises(ProgramError, match="broke"):
        asyncio.run(capital.arun("France", backend=FakeBackend(lambda p: iter([failed]))))

    @function
    def raises(s):
        s += gen("x")
        raise KeyError(s["x"])

    with pytest.raises(KeyError, match="x"):
        asyncio.run(raises.arun(backend=MockBackend()))


def test_a_broken_backend_does_not_hang_a_task():
    def script(program):
        yield Delta(0, "x", "h")
        raise ZeroDivisionError("bug")

    with pytest.raises(ProgramError, match="stopped by ZeroDivisionError: bug"):
        asyncio.run(capital.arun("France", backend=FakeBackend(script)))


def test_astream_yields_events_and_aborts_when_left():
    async def main() -> list[str]:
        backend = MockBackend({"city": "New York"})
        return [e.text async for e in capital.astream("X", backend=backend) if isinstance(e, Delta)]

    assert asyncio.run(main()) == ["New", " York"]

    async def leave() -> FakeBackend:
        backend = FakeBackend(lambda p: iter([Delta(0, "city", "h"), threading.Event(), Done()]))
        stream = capital.astream("X", backend=backend)
        assert await anext(stream) == Delta(0, "city", "h")
        await stream.aclose()
        return backend

    backend = asyncio.run(leave())
    assert backend.aborted == [backend.requests[0].id]


def test_astream_raises_failures():
    async def main() -> None:
        failed = Failed(error=ErrorInfo(code="x", message="broke"))
        stream = capital.astream("X", backend=FakeBackend(lambda p: iter([failed])))
        assert await anext(stream) == failed
        with pytest.raises(ProgramError, match="broke"):
            await anext(stream)

    asyncio.run(main())
