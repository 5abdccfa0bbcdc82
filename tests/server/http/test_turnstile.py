"""Turns of keys at the event loop."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from bough.server.http.door import ROUNDS, Turnstile


class Rounds:
    """Counts the rounds of the event loop, as long as it is entered."""

    def __init__(self) -> None:
        self.count = 0
        self._loop = asyncio.get_running_loop()
        self._on = True
        self._next()

    def _next(self) -> None:
        self.count += 1
        if self._on:
            self._loop.call_soon(self._next)

    def stop(self) -> None:
        self._on = False


def test_one_begins_every_few_rounds() -> None:
    async def run() -> list[int]:
        turnstile, rounds, begun = Turnstile(), Rounds(), list[int]()

        async def begin() -> None:
            await turnstile.enter("a")
            begun.append(rounds.count)

        await asyncio.gather(*(begin() for _ in range(40)))
        rounds.stop()
        return begun

    begun = asyncio.run(run())
    assert all(later - before >= ROUNDS for before, later in pairwise(begun))
    assert begun[-1] - begun[0] < 45 * ROUNDS


def test_one_that_comes_alone_does_not_wait() -> None:
    async def run() -> None:
        turnstile = Turnstile()
        for _ in range(3):
            with pytest.raises(StopIteration):
                turnstile.enter("a").send(None)
            for _ in range(ROUNDS + 1):
                await asyncio.sleep(0)

    asyncio.run(run())


def test_a_key_with_many_waits_behind_one_with_few() -> None:
    async def run() -> str:
        turnstile, begun = Turnstile(), list[str]()

        async def begin(key: str) -> None:
            await turnstile.enter(key)
            begun.append(key)

        many = [asyncio.ensure_future(begin("m")) for _ in range(100)]
        for _ in range(10 * ROUNDS):
            await asyncio.sleep(0)
        await begin("f")
        place = "".join(begun)
        await asyncio.gather(*many)
        assert sorted(begun) == ["f", *"m" * 100]
        return place

    place = asyncio.run(run())
    assert place.endswith("f")
    assert len(place) < 15


@pytest.mark.parametrize("late", range(4 * ROUNDS))
def test_those_that_are_cancelled_hold_nobody_up(late: int) -> None:
    async def run() -> None:
        turnstile = Turnstile()
        waiting = [asyncio.ensure_future(turnstile.enter("a")) for _ in range(6)]
        for _ in range(late):
            await asyncio.sleep(0)
        for each in waiting[1:4]:
            each.cancel()
        ended = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)
        assert [each for each in (ended[0], *ended[4:]) if each is not None] == []
        await asyncio.wait_for(turnstile.enter("a"), 5)

    asyncio.run(run())
