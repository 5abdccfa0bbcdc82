"""Turns of keys at the event loop."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from bough.server.errors import ApiError
from bough.server.http import door
from bough.server.http.connection import ClientClosedError
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


def test_those_whose_client_has_left_hold_nobody_up() -> None:
    async def run() -> tuple[list[object], str]:
        turnstile, begun, loop = Turnstile(), list[str](), asyncio.get_running_loop()
        lefts = [loop.create_future() for _ in range(101)]

        async def begin(name: str, left: asyncio.Future[None]) -> None:
            await turnstile.enter("a", left)
            begun.append(name)

        waiting = [asyncio.ensure_future(begin("d" if left is not lefts[0] else "f", left)) for left in lefts]
        await asyncio.sleep(0)
        last = asyncio.ensure_future(begin("l", loop.create_future()))
        await asyncio.sleep(0)
        for left in lefts[1:]:
            left.set_result(None)
        for _ in range(2 * ROUNDS + 2):
            await asyncio.sleep(0)
        assert last.done() and len(turnstile) == 0
        return [type(each) for each in await asyncio.gather(*waiting[1:], return_exceptions=True)], "".join(begun)

    ended, begun = asyncio.run(run())
    assert (ended, begun) == ([ClientClosedError] * 100, "fl")


def test_one_whose_client_has_left_before_is_not_begun() -> None:
    async def run() -> None:
        turnstile, left = Turnstile(), asyncio.get_running_loop().create_future()
        left.set_result(None)
        for _ in range(3):
            with pytest.raises(ClientClosedError):
                await turnstile.enter("a", left)
            with pytest.raises(StopIteration):
                turnstile.enter("a").send(None)
            for _ in range(ROUNDS + 1):
                await asyncio.sleep(0)

    asyncio.run(run())


def test_a_key_has_so_many_waiting_and_others_are_not_refused_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MAX_WAITING", 5)

    async def run() -> None:
        turnstile = Turnstile()
        waiting = [asyncio.ensure_future(turnstile.enter("m")) for _ in range(6)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as e:
            await turnstile.enter("m")
        assert (e.value.status, e.value.code, e.value.headers["retry-after"]) == (503, "too_many_waiting", "1")
        await asyncio.wait_for(turnstile.enter("f"), 5)
        await asyncio.gather(*waiting)
        await asyncio.wait_for(turnstile.enter("m"), 5)

    asyncio.run(run())
