"""Rounds in which ways to do the same take turns on one server: times, and what the server counted."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from ..harness.measure import gather_limited
from ..harness.server_process import Counters, ServerProcess

Job = Callable[[], Awaitable[object]]

_LOOK_S = 0.02


@dataclass(frozen=True)
class Round:
    """All jobs done once, on a cache that was empty before. `client_cpu_s`: processor seconds of this process."""

    wall_s: float
    client_cpu_s: float
    counted: Counters

    @property
    def idle_s(self) -> float:
        """In which the engine waited for something to do."""
        return max(0.0, self.wall_s - self.counted.step_s)


@dataclass(frozen=True)
class WayRounds:
    """The rounds of one way to do `num_programs` programs."""

    num_programs: int
    rounds: tuple[Round, ...]

    @property
    def median(self) -> Round:
        """The round whose time is the median (of an even number, the faster of the two)."""
        return sorted(self.rounds, key=lambda each: each.wall_s)[(len(self.rounds) - 1) // 2]

    @property
    def wall_s(self) -> float:
        return statistics.median(each.wall_s for each in self.rounds)

    @property
    def forward_s(self) -> float:
        return statistics.median(each.counted.forward_s for each in self.rounds)

    @property
    def requests(self) -> float:
        """A program."""
        return self.rounds[0].counted.num_requests / self.num_programs


async def run_round(server: ServerProcess, jobs: Sequence[Job], at_once: int) -> Round:
    """Does all jobs, `at_once` at a time, on an emptied cache."""
    server.flush()
    before, cpu, started = server.counters(), time.process_time(), time.perf_counter()
    await gather_limited(jobs, at_once)
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    return Round(wall_s, cpu_s, server.counters() - before)


async def take_turns(
    server: ServerProcess, ways: Mapping[str, Sequence[Job]], *, at_once: int, num_rounds: int
) -> dict[str, WayRounds]:
    """`num_rounds` rounds of each way, in turn; who begins changes from round to round."""
    names = list(ways)
    found: dict[str, list[Round]] = {name: [] for name in names}
    for number in range(num_rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            found[name].append(await run_round(server, ways[name], at_once))
    return {name: WayRounds(len(ways[name]), tuple(rounds)) for name, rounds in found.items()}


async def watch_batch(server: ServerProcess, jobs: Sequence[Job]) -> list[tuple[float, int]]:
    """Numbers of generations at a time, by seconds since the start. Looking costs time: no round to be timed."""
    looks: list[tuple[float, int]] = []

    async def look() -> None:
        started = time.perf_counter()
        while True:
            seconds = time.perf_counter() - started
            looks.append((seconds, (await asyncio.to_thread(server.info))["stats"]["running"]))
            await asyncio.sleep(_LOOK_S)

    server.flush()
    watcher = asyncio.create_task(look())
    try:
        await asyncio.gather(*(job() for job in jobs))
    finally:
        watcher.cancel()
    return looks
