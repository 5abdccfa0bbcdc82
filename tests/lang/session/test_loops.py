"""Event loops for those that have none: private ones, loop threads, the process's own, also after a fork."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import bough
from bough.lang.session.loops import LoopThread, background, on_a_loop, result_of, run_blocking


async def where() -> tuple[int, bool]:
    await asyncio.sleep(0)
    return threading.get_ident(), on_a_loop()


def test_run_blocking_uses_the_caller_s_thread_if_no_loop_runs_there():
    asyncio.set_event_loop(loop := asyncio.new_event_loop())
    assert run_blocking(where()) == (threading.get_ident(), True)
    assert asyncio.get_event_loop_policy().get_event_loop() is loop  # the caller's own is left alone
    asyncio.set_event_loop(None)
    loop.close()
    assert not on_a_loop()


def test_run_blocking_on_a_running_loop_uses_a_thread():
    async def main() -> tuple[int, bool]:
        return run_blocking(where())

    num_threads = threading.active_count()
    ident, was_on_loop = asyncio.run(main())
    assert ident != threading.get_ident() and was_on_loop
    assert threading.active_count() == num_threads


def test_a_loop_thread_has_the_caller_s_context_and_raises_here():
    color = contextvars.ContextVar("color", default="none")
    color.set("red")

    async def look() -> str:
        return color.get()

    async def fail() -> None:
        raise KeyError("there")

    thread = LoopThread("test")
    assert result_of(thread.submit(look())) == "red"
    with pytest.raises(KeyError, match="there"):
        result_of(thread.submit(fail()))
    thread.close()
    thread.close()


def test_closing_a_loop_thread_cancels_what_runs_there():
    ended = threading.Event()

    async def sleep() -> None:
        try:
            await asyncio.sleep(60.0)
        finally:
            ended.set()

    thread = LoopThread("test")
    future = thread.submit(sleep())
    time.sleep(0.01)
    thread.close()
    assert ended.is_set()
    with pytest.raises(RuntimeError, match="closed"):
        result_of(future)


async def exits() -> None:
    sys.exit(3)


async def interrupts() -> None:
    raise KeyboardInterrupt


async def stops() -> None:
    asyncio.get_running_loop().stop()


@pytest.mark.parametrize("bad", [exits, interrupts, stops])
def test_a_coroutine_that_exits_or_stops_the_loop_leaves_it_to_the_others(bad: Callable[[], Coroutine[Any, Any, None]]):
    gate = asyncio.Event()

    async def wait() -> str:
        await gate.wait()
        return "went on"

    async def open_gate() -> None:
        gate.set()

    thread = LoopThread("test")
    other = thread.submit(wait())
    raised = {exits: SystemExit, interrupts: KeyboardInterrupt}.get(bad)
    with pytest.raises(raised) if raised else contextlib.nullcontext():
        thread.submit(bad()).result(10.0)
    thread.submit(open_gate()).result(10.0)
    assert other.result(10.0) == "went on"
    thread.close()
    assert not thread.is_alive


def test_a_program_that_exits_leaves_those_beside_it_and_later_ones_alone():
    @bough.function
    async def good(s: Any) -> None:
        s += "a" + bough.gen("x")
        await s.aget("x")
        await asyncio.sleep(0.2)
        s += bough.gen("y")

    @bough.function
    async def bad(s: Any) -> None:
        s += "a" + bough.gen("x")
        await s.aget("x")
        sys.exit("no")

    backend = bough.MockBackend()
    beside = good.run(backend=backend, stream=True)
    ended = bad.run(backend=backend, stream=True)
    with pytest.raises(bough.ProgramError, match="no"):
        ended.sync()
    assert beside["y"] == "(y)"
    assert good.run(backend=backend, stream=True)["y"] == "(y)"


def test_a_loop_thread_of_the_process_that_has_ended_is_replaced():
    first = background.get()
    first.close()
    assert background.get() is not first
    assert result_of(background.get().submit(where()))[1]


def test_the_process_has_one_loop_thread():
    first = background.get()
    assert background.get() is first
    assert result_of(first.submit(where()))[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_makes_its_own():
    assert result_of(background.get().submit(where()))[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the process has threads: what this test is about
        child = os.fork()
    if child == 0:
        ok = False
        try:
            ok = background.get().submit(where()).result(timeout=10.0)[1]
        finally:
            os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_process_with_programs_left_running_ends_without_complaint():
    code = """
import asyncio, bough
class Silent(bough.MockBackend):
    async def arun(self, program, tools={}):
        await asyncio.sleep(60)
        yield
@bough.function
async def waits(s):
    s += bough.gen("x")
    await s.aget("x")
waits.run(backend=Silent(), stream=True)
events = waits.stream(backend=Silent())
import time; time.sleep(0.05)
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
