"""The mock backend runs tools beside its programs, within their limits, and stops them with their programs."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

import bough
from bough.lang.diagnostics.errors import ProgramError
from bough.runtime.protocol.program import Value


@bough.tool
def slowly(text: str, seconds: float) -> str:
    time.sleep(seconds)
    return text


@bough.function
def race(s: Any) -> None:
    s += "x"
    branches = s.fork(3)
    branches += lambda index: bough.use("t", slowly, text=str(index), seconds=0.2 - index / 20) + bough.gen("v")
    branches.join()


def test_tools_of_branches_run_side_by_side_and_lists_keep_their_order() -> None:
    begin = time.monotonic()
    assert race.run(backend=bough.MockBackend({"v": ["a", "b", "c"]}))["v"] == ["a", "b", "c"]
    assert time.monotonic() - begin < 0.4


def test_without_lists_the_first_tool_to_end_goes_on_first() -> None:
    seen: list[str] = []

    def note(prompt: str, name: str) -> str:
        seen.append(prompt[-1])
        return "v"

    race.run(backend=bough.MockBackend({"v": note}))
    assert seen == ["2", "1", "0"]


def test_events_come_while_a_tool_runs() -> None:
    release = threading.Event()

    @bough.tool
    def wait() -> str:
        assert release.wait(10)
        return "done"

    @bough.function
    def body(s: Any) -> None:
        s += "x" + bough.gen("a") + bough.use("t", wait)

    names = []
    for event in body.stream(backend=bough.MockBackend()):
        if isinstance(event, Value):
            names.append(event.name)
            release.set()
    assert names == ["a", "t"]


def test_a_program_s_time_is_that_of_all_its_tools() -> None:
    @bough.function
    def body(s: Any) -> None:
        for index in range(4):
            s += "x" + bough.use(f"t{index}", slowly, text="y", seconds=0.1)

    with pytest.raises(ProgramError) as caught:
        body.run(backend=bough.MockBackend(), timeout_s=0.25)
    assert caught.value.code == "generation_timeout"
    assert caught.value.state["t1"] == "y"


def test_an_answer_that_takes_too_long_is_a_time_out() -> None:
    def late(prompt: str, name: str) -> str:
        time.sleep(0.05)
        return "late"

    body = bough.function(lambda s: s.__iadd__("x" + bough.gen("v", timeout_s=0.01)))
    with pytest.raises(ProgramError) as caught:
        body.run(backend=bough.MockBackend({"v": late}))
    assert caught.value.code == "generation_timeout"


def test_a_cancelled_task_stops_its_tool_at_once() -> None:
    begun, stopped = threading.Event(), threading.Event()

    @bough.tool
    async def forever() -> str:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()
        return ""

    @bough.function
    def body(s: Any) -> None:
        s += "x" + bough.use("t", forever)

    async def main(backend: bough.MockBackend) -> None:
        task = asyncio.create_task(body.arun(backend=backend))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    backend = bough.MockBackend()
    asyncio.run(main(backend))
    assert stopped.wait(5)
    backend.close()


def test_programs_of_a_tool_s_own_can_use_the_same_backend() -> None:
    backend = bough.MockBackend({"inner": "deep"})

    @bough.tool
    def nested() -> str:
        return str(bough.function(lambda s: s.__iadd__("y" + bough.gen("inner"))).run(backend=backend)["inner"])

    body = bough.function(lambda s: s.__iadd__("x" + bough.use("t", nested)))
    assert body.run(backend=backend)["t"] == "deep"
