"""The workloads of programs, each as one request and generation by generation: times, tokens, and the same texts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ...runtime.tokenizer.tokenizer import Tokenizer
from ..harness.server_process import ServerProcess
from ..workloads.workload import Workload
from .rounds import WayRounds, take_turns
from .ways import GenByGen, OneRequest, OpenAICalls, Ops, Record, Way, is_chat


@dataclass(frozen=True)
class Traffic:
    """A program's means: bytes of the bodies that were sent, tokens in their texts, and tokens that the server made of
    texts."""

    num_bytes: float
    sent_tokens: float
    tokenised: float


@dataclass(frozen=True)
class Agreement:
    """Values beside those of the same programs as one request.

    same        as they are there
    retokenised generated after the same text, or one that differs because of this, but after other tokens
    different   generated after the same tokens: two were about equally likely, and the last bits of sums depend on the
                batch; or something is wrong
    """

    same: int
    retokenised: int
    different: int


@dataclass(frozen=True)
class WorkloadResult:
    """By the names of ways; `rounds` by programs at once, then by ways."""

    name: str
    num_programs: int
    rounds: dict[int, dict[str, WayRounds]]
    traffic: dict[str, Traffic]
    agreement: dict[str, Agreement]


async def measure_workload(
    server: ServerProcess, tokenizer: Tokenizer, workload: Workload, *, levels: Sequence[int], num_rounds: int
) -> WorkloadResult:
    """At each of `levels` so many programs at once. What is counted does not depend on that, and is of the most."""
    programs = workload.programs[: max(levels)]
    chosen: list[Way] = [OneRequest(server.url, tokenizer), GenByGen(server.url, server.model, tokenizer)]
    chosen += [OpenAICalls(server.url, server.model, tokenizer)] if all(map(is_chat, programs)) else []
    try:
        records = {way.name: await _record(server, way, programs) for way in chosen}
        rounds = {}
        for level in levels:
            jobs = {way.name: [partial(way.run, ops, Record()) for ops in programs[:level]] for way in chosen}
            rounds[level] = await take_turns(server, jobs, at_once=level, num_rounds=num_rounds)
    finally:
        for way in chosen:
            await way.aclose()
    return WorkloadResult(
        name=workload.name,
        num_programs=len(programs),
        rounds=rounds,
        traffic={name: _traffic(found, tokenizer) for name, found in records.items()},
        agreement={name: agreement(records[OneRequest.name], found) for name, found in records.items()},
    )


_CUT = "\ufffd"
"""Replacement for part of a character: sent again, it is another character."""


def agreement(wanted: Sequence[Record], found: Sequence[Record]) -> Agreement:
    same = retokenised = different = 0
    for one, other in zip(wanted, found, strict=True):
        for place, text in one.values.items():
            if other.values[place] == text:
                same += 1
            elif other.prompts[place] != one.prompts[place] or any(_CUT in token for token in one.prompts[place]):
                retokenised += 1
            else:
                different += 1
    return Agreement(same, retokenised, different)


async def _record(server: ServerProcess, way: Way, programs: Sequence[Ops]) -> list[Record]:
    """Also warms the way up."""
    records = [Record() for _ in programs]
    server.flush()
    await asyncio.gather(*(way.run(ops, record, full=True) for ops, record in zip(programs, records, strict=True)))
    return records


def _traffic(records: Sequence[Record], tokenizer: Tokenizer) -> Traffic:
    count = len(records)
    return Traffic(
        num_bytes=sum(record.num_bytes for record in records) / count,
        sent_tokens=sum(len(tokenizer.encode(text, special=True)) for r in records for text in r.texts) / count,
        tokenised=sum(record.tokenised for record in records) / count,
    )
