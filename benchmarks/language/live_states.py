"""Thousands of programs that wait for a value at once: checks the memory of each, and that none has a thread."""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import resource
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...lang.api import function, gen
from ...lang.backends.local import LocalBackend
from ...lang.backends.mock import MockBackend
from ...lang.function import Function
from ...lang.state.state import State
from ...runtime.protocol.config import EngineConfig
from ...runtime.protocol.program import Done, Gen, Program, ProgramEvent, Value
from ..harness.report import figures_table, write_json

GOAL_BYTES = 20 * 1024  # memory per idle state, by the operating system's count
_POLL_S = 0.02
_MAX_TOKENS = 2


@function
def _plain(s: State, number: int) -> str:
    s += f"Question {number}:" + gen("answer", max_tokens=_MAX_TOKENS, temperature=0)
    return str(s["answer"])


@function
async def _asynchronous(s: State, number: int) -> str:
    s += f"Question {number}:" + gen("answer", max_tokens=_MAX_TOKENS, temperature=0)
    return str(await s.aget("answer"))


@function
async def _endless(s: State, max_tokens: int) -> None:
    s += "One, two, three" + gen("more", max_tokens=max_tokens, ignore_eos=True)


_BODIES: dict[str, Function[str]] = {"plain": _plain, "async": _asynchronous}


@dataclass(frozen=True)
class StateCost:
    """Cost of live states. Bytes are per state; `start_s` until all wait; `end_s` until all have ended."""

    case: str
    num_states: int
    resident_bytes: float
    num_more_threads: int
    start_s: float
    end_s: float

    @property
    def resident_kb(self) -> float:
        return self.resident_bytes / 1024

    @property
    def good(self) -> bool:
        return self.resident_bytes <= GOAL_BYTES and self.num_more_threads <= 0


_COLUMNS = {
    "": "{0.case}",
    "states": "{0.num_states:,}",
    "KB each": "{0.resident_kb:.1f}",
    "threads": "{0.num_more_threads:+}",
    "start s": "{0.start_s:.2f}",
    "end s": "{0.end_s:.2f}",
}


class HoldingBackend(MockBackend):
    """Answers nothing before `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.num_held = 0
        self.go = asyncio.Event()

    async def arun(self, program: Program, tools: object = None) -> AsyncIterator[ProgramEvent]:
        self.num_held += 1
        await self.go.wait()
        for op in program.ops:
            if isinstance(op, Gen):
                yield Value(branch=op.branch, name=op.name, text="yes")
        yield Done(requests=1)


def run(arguments: argparse.Namespace) -> int:
    bodies = list(_BODIES)
    costs = [_in_child(measure_held, body, arguments.states) for body in bodies]
    if arguments.engine_states:
        costs += [_in_child(measure_waiting, body, arguments.engine_states, arguments.model) for body in bodies]
    print(figures_table(_COLUMNS, costs, right=range(1, 6)))
    write_json(arguments.json, [asdict(cost) for cost in costs])
    return 0 if all(cost.good for cost in costs[:2]) else 1  # in an engine, its own requests are counted, too


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--states", type=int, default=10_000, help="programs that wait at a time (default: %(default)s)"
    )
    parser.add_argument(
        "--engine-states", type=int, default=1000, help="the same inside a real engine; 0: none (default: %(default)s)"
    )
    parser.add_argument("--model", default=EngineConfig().model, help="of that engine (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write all numbers")


def _in_child(measure: Callable[..., Coroutine[Any, Any, StateCost]], *arguments: Any) -> StateCost:
    """Measures in a process of its own, whose memory nothing else has used."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_run_here, measure, *arguments).result()


def _run_here(measure: Callable[..., Coroutine[Any, Any, StateCost]], *arguments: Any) -> StateCost:
    return asyncio.run(measure(*arguments))


async def measure_held(body: str, num_states: int) -> StateCost:
    """States that wait for a backend which holds its answers, and then get them."""
    warm, backend = HoldingBackend(), HoldingBackend()
    warm.go.set()
    await _BODIES[body].arun(0, backend=warm)

    async def release(tasks: Sequence[asyncio.Task[Any]]) -> None:
        backend.go.set()
        if not all(state.ret_value == "yes" for state in await asyncio.gather(*tasks)):
            raise RuntimeError("a program that was held did not get its value")

    return await _measured(body, "", backend, num_states, lambda: backend.num_held == num_states, release)


async def measure_waiting(body: str, num_states: int, model: str) -> StateCost:
    """States whose requests wait in an engine's queue, behind one that is running; then all are cancelled."""
    with LocalBackend(model, max_num_seqs=1) as backend:
        stats = backend.client.stats
        await _BODIES[body].arun(0, backend=backend)
        longest = backend.client.info.max_request_tokens // 2
        endless = asyncio.create_task(_endless.arun(longest, backend=backend))
        await _until(lambda: bool(stats().running))

        async def cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
            for task in (*tasks, endless):
                task.cancel()
            await asyncio.gather(*tasks, endless, return_exceptions=True)
            await _until(lambda: not stats().waiting + stats().running)

        all_wait = lambda: stats().waiting == num_states  # noqa: E731
        return await _measured(body, ", in the engine", backend, num_states, all_wait, cancel)


Check = Callable[[], bool]
End = Callable[[Sequence[asyncio.Task[Any]]], Awaitable[None]]


async def _measured(body: str, where: str, backend: Any, num_states: int, all_wait: Check, end: End) -> StateCost:
    """Cost of states from where all wait, until `end` has ended them."""
    before, num_threads, started = _resident_bytes(), threading.active_count(), time.perf_counter()
    tasks = [asyncio.create_task(_BODIES[body].arun(number, backend=backend)) for number in range(num_states)]
    await _until(all_wait)
    start_s = time.perf_counter() - started
    resident_bytes, num_more_threads = (_resident_bytes() - before) / num_states, threading.active_count() - num_threads
    released = time.perf_counter()
    await end(tasks)
    end_s = time.perf_counter() - released
    return StateCost(f"{body} body{where}", num_states, resident_bytes, num_more_threads, start_s, end_s)


async def _until(done: Check) -> None:
    while not done():
        await asyncio.sleep(_POLL_S)


def _resident_bytes() -> int:
    """Resident memory of this process, now. Where the system does not say it, the most that it ever was."""
    gc.collect()
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
