"""Runs a workload on an engine, one program at a time or all at once, and counts."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import quantiles

from ...runtime.client.client import EngineClient
from ...runtime.protocol.errors import EngineError
from ...runtime.protocol.program import Done, Failed, Op, Piece, Program, Value
from ...runtime.protocol.request import Usage
from ..optimum import fewest_computed, sent_requests
from ..workloads.workload import Workload

_IDS = itertools.count()


@dataclass(frozen=True)
class ProgramRun:
    ops: tuple[Op, ...]
    pieces: tuple[Piece, ...]
    values: tuple[Value, ...]
    usage: Usage
    num_requests: int
    latency_s: float


@dataclass(frozen=True)
class Measurement:
    """One workload in one mode. `outputs` are all values, in the order of programs, branches and instructions."""

    num_requests: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    output_tokens: int
    elapsed_s: float
    p50_s: float
    p99_s: float
    outputs: tuple[str, ...]

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens

    @property
    def throughput(self) -> float:
        """Output tokens a second."""
        return self.output_tokens / self.elapsed_s


def measure(
    client: EngineClient, workload: Workload, *, concurrency: int, on_program: Callable[[], None]
) -> tuple[Measurement, list[ProgramRun]]:
    """Runs all programs, `concurrency` at a time, on an emptied cache. `on_program` is called as each ends.

    Raises:
        EngineError: a program failed, or the engine is busy with something else.
    """
    if not client.flush_cache():
        raise EngineError("the engine is running other requests: nothing can be measured")
    computed_before = client.stats().computed_tokens_total
    started = time.perf_counter()
    runs = asyncio.run(_run_all(client, workload.programs, concurrency, on_program))
    elapsed_s = time.perf_counter() - started
    usage = sum((run.usage for run in runs), Usage())
    p50_s, p99_s = _percentiles([run.latency_s for run in runs])
    measurement = Measurement(
        num_requests=sum(run.num_requests for run in runs),
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        computed_tokens=client.stats().computed_tokens_total - computed_before,
        output_tokens=usage.completion_tokens,
        elapsed_s=elapsed_s,
        p50_s=p50_s,
        p99_s=p99_s,
        outputs=tuple(value.text for run in runs for value in sorted(run.values, key=lambda v: (v.branch, v.name))),
    )
    return measurement, runs


def best_hit_rate(client: EngineClient, runs: Sequence[ProgramRun]) -> float:
    """What an unlimited cache would reach with the requests that were sent, in the best order."""

    def split(choice: str) -> list[str]:
        return client.tokenizer.texts(client.tokenizer.encode(choice))

    requests = [sent for run in runs for sent in sent_requests(run.ops, run.pieces, run.values, split)]
    num_prompt = sum(request.num_prompt for request in requests)
    return 1 - fewest_computed(requests) / num_prompt


async def _run_all(
    client: EngineClient, programs: Sequence[tuple[Op, ...]], concurrency: int, on_program: Callable[[], None]
) -> list[ProgramRun]:
    places = asyncio.Semaphore(concurrency)

    async def run(ops: tuple[Op, ...]) -> ProgramRun:
        async with places:
            result = await _run(client, ops)
        on_program()
        return result

    return await asyncio.gather(*(run(ops) for ops in programs))


async def _run(client: EngineClient, ops: tuple[Op, ...]) -> ProgramRun:
    pieces: list[Piece] = []
    values: list[Value] = []
    started = time.perf_counter()
    async for event in client.arun(Program(id=f"bench-{next(_IDS)}", ops=ops, trace=True)):
        if isinstance(event, Piece):
            pieces.append(event)
        elif isinstance(event, Value):
            values.append(event)
        elif isinstance(event, Failed):
            raise EngineError(f"instruction {event.index} failed: {event.error.message}")
        elif isinstance(event, Done):
            latency_s = time.perf_counter() - started
            return ProgramRun(ops, tuple(pieces), tuple(values), event.usage, event.requests, latency_s)
    raise EngineError("a program ended without a result")


def _percentiles(latencies_s: Sequence[float]) -> tuple[float, float]:
    if len(latencies_s) == 1:
        return latencies_s[0], latencies_s[0]
    cuts = quantiles(latencies_s, n=100, method="inclusive")
    return cuts[49], cuts[98]
