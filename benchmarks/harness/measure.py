"""Runs of a workload on an engine, one program at a time or all at once: times, tokens, and the best possible hit rate
of a prefix cache for the requests that were sent."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ...runtime.client.client import EngineClient
from ...runtime.protocol.errors import EngineError
from ...runtime.protocol.program import Done, Failed, Fork, Gen, Join, Op, Piece, Program, ProgramEvent, Select, Value
from ...runtime.protocol.request import Usage
from ..workloads.programs import Workload
from .report import percentiles

Made = TypeVar("Made")

IDS = itertools.count()  # ends of programs' names


@dataclass(frozen=True)
class ProgramRun:
    ops: tuple[Op, ...]
    pieces: tuple[Piece, ...]
    values: tuple[Value, ...]
    done: Done
    latency_s: float

    @property
    def outputs(self) -> tuple[str, ...]:
        """Its values, in the order of branches and instructions."""
        return tuple(value.text for value in sorted(self.values, key=lambda value: (value.branch, value.name)))


def measure(
    client: EngineClient, workload: Workload, *, concurrency: int, on_program: Callable[[], None]
) -> tuple[dict[str, float], list[ProgramRun]]:
    """Runs all programs, `concurrency` at a time, on an emptied cache: the numbers of a report, and the runs.

    `on_program` is called as each ends.

    Raises:
        EngineError: a program failed, or the engine is busy with something else.
    """
    if not client.flush_cache():
        raise EngineError("the engine is running other requests: nothing can be measured")
    jobs = [partial(_run, client, ops, on_program) for ops in workload.programs]
    computed_before = client.stats().computed_tokens_total
    started = time.perf_counter()
    runs = asyncio.run(gather_limited(jobs, concurrency))
    elapsed_s = time.perf_counter() - started
    usage = sum((run.done.usage for run in runs), Usage())
    p50_s, p99_s = percentiles([run.latency_s for run in runs], 50, 99)
    numbers = {
        "num_requests": sum(run.done.requests for run in runs),
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "computed_tokens": client.stats().computed_tokens_total - computed_before,
        "output_tokens": usage.completion_tokens,
        "elapsed_s": elapsed_s,
        "p50_s": p50_s,
        "p99_s": p99_s,
        "hit_rate": usage.cached_tokens / usage.prompt_tokens,
        "output_tokens_per_s": usage.completion_tokens / elapsed_s,
    }
    return numbers, runs


def best_hit_rate(client: EngineClient, runs: Sequence[ProgramRun]) -> float:
    """Returns the hit rate that an unlimited cache reaches with the requests that were sent, in the best order."""

    def split(choice: str) -> list[str]:
        return client.tokenizer.texts(client.tokenizer.encode(choice))

    requests = [sent for run in runs for sent in sent_requests(run.ops, run.pieces, run.values, split)]
    num_prompt = sum(request.num_prompt for request in requests)
    return 1 - fewest_computed(requests) / num_prompt


async def gather_limited(jobs: Iterable[Callable[[], Awaitable[Made]]], at_once: int) -> list[Made]:
    """Does all jobs, `at_once` at a time; what they return, in order."""
    places = asyncio.Semaphore(at_once)

    async def do(job: Callable[[], Awaitable[Made]]) -> Made:
        async with places:
            return await job()

    return await asyncio.gather(*map(do, jobs))


async def _run(client: EngineClient, ops: tuple[Op, ...], on_program: Callable[[], None]) -> ProgramRun:
    started = time.perf_counter()
    pieces, values, done = await collect(client.arun(Program(id=f"bench-{next(IDS)}", ops=ops, trace=True)))
    latency_s = time.perf_counter() - started
    on_program()
    return ProgramRun(ops, tuple(pieces), tuple(values), done, latency_s)


async def collect(events: AsyncIterator[ProgramEvent]) -> tuple[list[Piece], list[Value], Done]:
    """Hears a program to its end. Raises EngineError: an instruction failed."""
    pieces: list[Piece] = []
    values: list[Value] = []
    async for event in events:
        if isinstance(event, Piece):
            pieces.append(event)
        elif isinstance(event, Value):
            values.append(event)
        elif isinstance(event, Failed):
            raise EngineError(f"instruction {event.index} failed: {event.error.message}")
        elif isinstance(event, Done):
            return pieces, values, event
    raise EngineError("a program ended without a result")


# -- The best that any cache could do ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sent:
    """A request, with its tokens in any hashable form."""

    tokens: tuple[str, ...]  # of the prompt, and after it what was computed as it was generated
    num_prompt: int  # how many of them are the prompt
    num_matchable: int  # how many could come from a cache: the rest is computed for the sake of its logits


def fewest_computed(requests: Iterable[Sent]) -> int:
    """Prompt tokens that have to be computed even with an unlimited cache of single tokens.

    Requests in depth-first order reach it: each distinct prefix is computed once, but for those that a request would
    compute in any case.
    """
    prefixes: dict[tuple[int, str], int] = {}  # numbers, by the number of the prefix that is a token shorter
    computed: set[int] = set()
    num_always = 0
    for request in requests:
        num_always += request.num_prompt - request.num_matchable
        prefix = 0
        for position, token in enumerate(request.tokens):
            prefix = prefixes.setdefault((prefix, token), len(prefixes) + 1)
            if position >= request.num_matchable:
                computed.add(prefix)
    return num_always + len(prefixes) - len(computed)


def sent_requests(
    ops: Sequence[Op], pieces: Iterable[Piece], values: Iterable[Value], split: Callable[[str], Sequence[str]]
) -> list[Sent]:
    """The requests that a traced program sent, its tokens being their texts. `split` gives the tokens of a choice.
    Raises as `traced`."""
    completions = {(value.branch, value.name): value.usage.completion_tokens for value in values}
    requests = []
    for op, before, appended in traced(ops, pieces):
        if isinstance(op, Gen):
            # The last token that was generated has not been computed.
            generated = appended[: max(0, completions[op.branch, op.name] - 1)]
            requests.append(Sent(before + generated, len(before), len(before) - 1))
        elif isinstance(op, Select):
            prompts = [(*before, *split(choice)) for choice in op.choices]
            requests += [Sent(prompt, len(prompt), len(before) - 1) for prompt in prompts]
    return requests


def traced(ops: Sequence[Op], pieces: Iterable[Piece]) -> Iterator[tuple[Op, tuple[str, ...], tuple[str, ...]]]:
    """Each instruction of a traced program, with the texts of the tokens before it in its branch and of those that it
    appended. Raises ValueError: the program joins by appending, which a trace does not show."""
    texts = {(piece.branch, piece.op): piece.texts for piece in pieces}
    branches: dict[int, tuple[str, ...]] = {0: ()}
    num_ops = Counter[int]()
    for op in ops:
        if isinstance(op, Join) and op.mode == "append":
            raise ValueError("a program that joins by appending cannot be analysed")
        before = branches[op.branch]
        appended = texts.get((op.branch, num_ops[op.branch]), ())
        num_ops[op.branch] += 1
        branches[op.branch] = before + appended
        if isinstance(op, Fork):
            branches |= dict.fromkeys(op.children, before)
        yield op, before, appended
