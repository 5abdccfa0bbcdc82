"""Thousands of programs that wait for a value at a time: what each costs in memory, and that none has a thread."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import resource
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...lang.api import gen
from ...lang.backend import TEXT_ONLY
from ...lang.backends.local import LocalBackend
from ...lang.function import AsyncFunction, Function
from ...lang.state.state import State
from ...runtime.protocol.config import EngineConfig
from ...runtime.protocol.program import Done, Gen, Program, ProgramEvent, Value
from ..harness.report import write_json

GOAL_BYTES = 20 * 1024
"""Memory per idle state, by the operating system's count."""

_POLL_S = 0.02
_MAX_TOKENS = 2


def _plain_body(s: State, number: int) -> str:
    s += f"Question {number}:" + gen("answer", max_tokens=_MAX_TOKENS, temperature=0)
    return str(s["answer"])


async def _async_body(s: State, number: int) -> str:
    s += f"Question {number}:" + gen("answer", max_tokens=_MAX_TOKENS, temperature=0)
    return str(await s.aget("answer"))


async def _endless_body(s: State, max_tokens: int) -> None:
    s += "One, two, three" + gen("more", max_tokens=max_tokens, ignore_eos=True)


_BODIES: dict[str, Callable[[], Function[str]]] = {
    "plain": lambda: Function(_plain_body),
    "async": lambda: AsyncFunction(_async_body),
}


@dataclass(frozen=True)
class StateCost:
    """Cost of live states. Bytes are per state; `traced_bytes` is what Python's own allocator knows of, measured on a
    tenth of them before. `start_s` until all wait; `end_s` until all have ended."""

    case: str
    num_states: int
    resident_bytes: float
    traced_bytes: float
    num_threads: int
    num_more_threads: int
    start_s: float
    end_s: float

    @property
    def good(self) -> bool:
        return self.resident_bytes <= GOAL_BYTES and self.num_more_threads <= 0


class HoldingBackend:
    """Answers nothing before it is let go."""

    modalities = TEXT_ONLY

    def __init__(self) -> None:
        self.num_held = 0
        self._go = asyncio.Event()

    def let_go(self) -> None:
        self._go.set()

    async def arun(self, program: Program, tools: object = None) -> AsyncIterator[ProgramEvent]:
        self.num_held += 1
        await self._go.wait()
        for op in program.ops:
            if isinstance(op, Gen):
                yield Value(branch=op.branch, name=op.name, text="yes")
        yield Done(requests=1)

    def run(self, program: Program, tools: object = None) -> Iterator[ProgramEvent]:
        raise NotImplementedError("programs on an event loop only")

    def drop(self, program_id: str) -> None:
        """Keeps nothing."""

    def flush_cache(self) -> bool:
        return True

    def close(self) -> None:
        """Holds nothing."""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    if arguments.case:
        print(json.dumps(asdict(_measure(arguments))))
        return 0
    cases = [("plain", "hold"), ("async", "hold")]
    if arguments.engine_states:
        cases += [("plain", "engine"), ("async", "engine")]
    costs = [_in_child(arguments, f"{name}:{where}") for name, where in cases]
    print(_table(costs))
    if arguments.json:
        write_json(arguments.json, [asdict(cost) for cost in costs])
    return 0 if all(cost.good for cost in costs[:2]) else 1  # in an engine, its own requests are counted, too


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bough bench live_states", description=__doc__)
    parser.add_argument(
        "--states", type=int, default=10_000, help="programs that wait at a time (default: %(default)s)"
    )
    parser.add_argument(
        "--engine-states", type=int, default=1000, help="the same inside a real engine; 0: none (default: %(default)s)"
    )
    parser.add_argument("--model", default=EngineConfig().model, help="of that engine (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write all numbers")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    return parser


def _in_child(arguments: argparse.Namespace, case: str) -> StateCost:
    """Measures in a process of its own, whose memory nothing else has used."""
    command = [sys.executable, "-P", "-m", "bough.cli", "bench", "live_states", "--case", case]
    command += ["--states", str(arguments.states), "--engine-states", str(arguments.engine_states)]
    done = subprocess.run([*command, "--model", arguments.model], stdout=subprocess.PIPE, text=True, check=True)
    return StateCost(**json.loads(done.stdout.splitlines()[-1]))


def _measure(arguments: argparse.Namespace) -> StateCost:
    name, _, where = arguments.case.partition(":")
    function = _BODIES[name]()
    if where == "hold":
        return asyncio.run(measure_held(function, name, arguments.states))
    with LocalBackend(arguments.model, max_num_seqs=1) as backend:
        return asyncio.run(measure_waiting(function, name, arguments.engine_states, backend))


async def measure_held(function: Function[Any], name: str, num_states: int) -> StateCost:
    """States that wait for a backend which holds its answers, and then get them."""
    warm = HoldingBackend()
    warm.let_go()
    await function.arun(0, backend=warm)
    tracemalloc.start()
    traced = await _held(function, f"{name} body", max(1, num_states // 10))
    tracemalloc.stop()
    return replace(await _held(function, f"{name} body", num_states), traced_bytes=traced.traced_bytes)


async def _held(function: Function[Any], case: str, num_states: int) -> StateCost:
    backend = HoldingBackend()
    before = _Levels.now()
    start = time.perf_counter()
    tasks = [asyncio.create_task(function.arun(number, backend=backend)) for number in range(num_states)]
    while backend.num_held < num_states:
        await asyncio.sleep(_POLL_S)
    held = time.perf_counter()
    now = _Levels.now()
    released = time.perf_counter()
    backend.let_go()
    states = await asyncio.gather(*tasks)
    if not all(state.ret_value == "yes" for state in states):
        raise RuntimeError("a program that was held did not get its value")
    return now.cost_since(before, case, num_states, start_s=held - start, end_s=time.perf_counter() - released)


async def measure_waiting(function: Function[Any], name: str, num_states: int, backend: LocalBackend) -> StateCost:
    """States whose requests wait in an engine's queue, behind one that is running; then all are cancelled."""
    await function.arun(0, backend=backend)
    longest = backend.client.info.max_request_tokens // 2
    endless = asyncio.create_task(AsyncFunction(_endless_body).arun(longest, backend=backend))
    while not backend.client.stats().running:
        await asyncio.sleep(_POLL_S)
    before = _Levels.now()
    start = time.perf_counter()
    tasks = [asyncio.create_task(function.arun(number, backend=backend)) for number in range(num_states)]
    while backend.client.stats().waiting < num_states:
        await asyncio.sleep(_POLL_S)
    waiting = time.perf_counter()
    now = _Levels.now()
    cancelled = time.perf_counter()
    for task in (*tasks, endless):
        task.cancel()
    await asyncio.gather(*tasks, endless, return_exceptions=True)
    while (stats := backend.client.stats()).waiting + stats.running:
        await asyncio.sleep(_POLL_S)
    end_s = time.perf_counter() - cancelled
    return now.cost_since(before, f"{name} body, in the engine", num_states, start_s=waiting - start, end_s=end_s)


@dataclass(frozen=True)
class _Levels:
    resident_bytes: int
    traced_bytes: int
    num_threads: int

    @classmethod
    def now(cls) -> _Levels:
        gc.collect()
        return cls(_resident_bytes(), tracemalloc.get_traced_memory()[0], threading.active_count())

    def cost_since(self, before: _Levels, case: str, num_states: int, *, start_s: float, end_s: float) -> StateCost:
        return StateCost(
            case=case,
            num_states=num_states,
            resident_bytes=(self.resident_bytes - before.resident_bytes) / num_states,
            traced_bytes=(self.traced_bytes - before.traced_bytes) / num_states,
            num_threads=self.num_threads,
            num_more_threads=self.num_threads - before.num_threads,
            start_s=start_s,
            end_s=end_s,
        )


def _resident_bytes() -> int:
    """Resident memory of this process, now. Where the system does not say it, the most that it ever was."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _table(costs: Sequence[StateCost]) -> str:
    lines = [f"{'':26}{'states':>8}{'KB each':>9}{'by Python':>11}{'threads':>9}{'start s':>9}{'end s':>8}"]
    lines += [
        f"{cost.case:26}{cost.num_states:>8,}{cost.resident_bytes / 1024:>9.1f}{cost.traced_bytes / 1024:>11.1f}"
        f"{cost.num_more_threads:>+9}{cost.start_s:>9.2f}{cost.end_s:>8.2f}"
        for cost in costs
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
