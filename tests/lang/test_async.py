"""Programs on an event loop: plain and coroutine bodies, cancelling, streaming."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from bough.lang.api import assistant, function, gen, user
from bough.lang.backends.mock import MockBackend
from bough.lang.errors import ProgramError
from bough.runtime.program import Delta, Done, Failed
from bough.runtime.request import ErrorInfo

from .fakes import FakeBackend


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
    with pytest.raises(ProgramError, match="coroutine function"):
        reads.run(2, backend=backend)


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


def test_cancelling_arun_aborts():
    gate = threading.Event()
    backend = FakeBackend(lambda p: iter([Delta(0, "x", "h"), gate, Done()]))
    ended = []

    @function
    def waits(s):
        s += gen("x")
        try:
            s["x"]
        except ProgramError as error:
            ended.append(error.code)
            raise

    async def main() -> None:
        task = asyncio.create_task(waits.arun(backend=backend))
        while not backend.requests:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert backend.aborted == [backend.requests[0].id]

    asyncio.run(main())
    deadline = time.monotonic() + 5.0
    while not ended and time.monotonic() < deadline:
        time.sleep(0.005)
    assert ended == ["aborted"]


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
