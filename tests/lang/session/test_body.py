"""Plain functions that wait on an event loop: values, exceptions, context variables, cancelling, being discarded."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import subprocess
import sys
import threading
import traceback
from collections.abc import Generator

import greenlet
import pytest

from bough.lang.session.body import in_body, spawn, wait_for


class Forever:
    """Is waited for until it is discarded; needs no event loop."""

    def __await__(self) -> Generator[None, None, None]:
        while True:
            yield


def test_a_body_gets_what_it_waits_for():
    async def answer(number: int) -> int:
        await asyncio.sleep(0)
        return number * 2

    def body() -> list[int]:
        assert in_body()
        return [wait_for(answer(1)), wait_for(answer(2))]

    async def main() -> list[list[int]]:
        assert not in_body()
        return list(await asyncio.gather(spawn(body), spawn(body), spawn(lambda: [7])))

    assert asyncio.run(main()) == [[2, 4], [2, 4], [7]]
    assert not in_body()


def test_bodies_take_turns_and_may_be_nested():
    order = []

    def inner(name: str) -> None:
        for step in range(2):
            order.append(f"{name}{step}")
            wait_for(asyncio.sleep(0))

    def outer() -> None:
        order.append("start")
        wait_for(spawn(lambda: inner("c")))
        order.append("end")

    async def main() -> None:
        await asyncio.gather(spawn(lambda: inner("a")), spawn(lambda: inner("b")))
        await spawn(outer)

    asyncio.run(main())
    assert order == ["a0", "b0", "a1", "b1", "start", "c0", "c1", "end"]


def test_exceptions_pass_both_ways_with_their_lines():
    async def fails() -> None:
        await asyncio.sleep(0)
        raise KeyError("inside")

    def body() -> None:
        try:
            wait_for(fails())
        except KeyError as error:
            raise ValueError("outside") from error

    with pytest.raises(ValueError, match="outside") as caught:
        asyncio.run(spawn_all(body))
    functions = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert functions[-1] == "body"
    assert isinstance(caught.value.__cause__, KeyError)
    causes = [frame.name for frame in traceback.extract_tb(caught.value.__cause__.__traceback__)]
    assert causes[0] == "body" and causes[-1] == "fails"


async def spawn_all(*bodies) -> None:
    await asyncio.gather(*map(spawn, bodies))


def test_a_body_shares_its_task_s_context_variables():
    color = contextvars.ContextVar("color", default="none")

    def body(new: str) -> str:
        before = color.get()
        color.set(new)
        wait_for(asyncio.sleep(0))
        return before + color.get()

    async def one(new: str) -> tuple[str, str]:
        color.set("task ")
        return await spawn(lambda: body(new)), color.get()

    async def main() -> list[tuple[str, str]]:
        return list(await asyncio.gather(one("red"), one("blue")))

    assert asyncio.run(main()) == [("task red", "red"), ("task blue", "blue")]
    assert color.get() == "none"


def test_cancelling_the_task_is_raised_where_the_body_waits():
    seen = []

    def body() -> None:
        try:
            wait_for(asyncio.sleep(60.0))
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        finally:
            wait_for(asyncio.sleep(0))  # a body may wait for its own end
            seen.append("finally")

    async def main() -> None:
        task = asyncio.create_task(spawn(body))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == ["cancelled", "finally"]


def test_a_body_left_waiting_at_the_loop_s_end_is_unwound():
    seen: list[type[BaseException]] = []
    left: list[asyncio.Task[None]] = []

    def body() -> None:
        try:
            wait_for(Forever())
        except BaseException as error:
            seen.append(type(error))
            raise

    async def leave() -> None:
        left.append(asyncio.create_task(spawn(body)))
        await asyncio.sleep(0)

    asyncio.run(leave())
    assert seen == [asyncio.CancelledError]

    work = spawn(body)
    work.send(None)
    work.close()
    assert seen == [asyncio.CancelledError, greenlet.GreenletExit]


def test_a_body_thrown_away_inside_another_returns_to_that_one():
    seen = []

    def left() -> None:
        try:
            wait_for(Forever())
        finally:
            seen.append("left")

    def body() -> str:
        work = spawn(left)
        work.send(None)
        del work
        gc.collect()
        seen.append("body")
        return "end"

    assert asyncio.run(spawn(body)) == "end"
    assert seen == ["left", "body"]


def test_a_body_thrown_away_by_another_thread_harms_nobody():
    def body() -> None:
        wait_for(Forever())

    work = spawn(body)
    work.send(None)
    thread = threading.Thread(target=work.close)
    thread.start()
    thread.join()
    assert not thread.is_alive()


def test_a_body_that_will_not_end_is_an_error():
    def body() -> None:
        while True:
            try:
                wait_for(Forever())
            except greenlet.GreenletExit:
                wait_for(Forever())

    work = spawn(body)
    work.send(None)
    with pytest.raises(RuntimeError, match="discarded"):
        work.close()


def test_a_watch_is_told_how_long_the_loop_was_held():
    held: list[float] = []

    def body() -> None:
        wait_for(asyncio.sleep(0.02))

    asyncio.run(spawn(body, held.append))
    assert len(held) == 2 and all(0.0 <= seconds < 0.02 for seconds in held)


def test_importing_bough_does_not_import_greenlet():
    code = "import sys, bough; sys.exit('greenlet' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code]).returncode == 0
