"""Tokens of all programs of a backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

from bough.lang.backends.apis.api_backend import TokenUsage
from bough.runtime.protocol.program import Delta, Done, ProgramEvent
from bough.runtime.protocol.request import Usage

EVENTS = (Delta(0, "x", "a"), Done(usage=Usage(prompt_tokens=5, completion_tokens=2)))


def test_what_passes_is_counted():
    usage = TokenUsage()
    assert list(usage.counted(iter(_events()))) == list(EVENTS)
    assert (usage.prompt_tokens, usage.completion_tokens) == (5, 2)

    async def main() -> list[ProgramEvent]:
        return [event async for event in usage.acounted(_aevents())]

    assert asyncio.run(main()) == list(EVENTS)
    assert usage.prompt_tokens == 10
    usage.reset()
    assert (usage.prompt_tokens, usage.completion_tokens) == (0, 0)


def test_leaving_early_closes_what_is_behind_it():
    closed = []

    def events() -> Iterator[ProgramEvent]:
        try:
            yield from EVENTS
        finally:
            closed.append(True)

    counted = TokenUsage().counted(events())
    next(counted)
    counted.close()  # type: ignore[attr-defined]
    assert closed == [True]


def _events() -> Iterator[ProgramEvent]:
    yield from EVENTS


async def _aevents() -> AsyncIterator[ProgramEvent]:
    for event in EVENTS:
        yield event
