"""Admission of requests: to the event loop, where keys take turns, and to the engine, which has few places."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from ...constrain.workers.turns import FairQueue
from ...radix import EQUAL, Weights
from ...runtime.protocol.errors import EngineStoppedError, OverloadedError, RequestError
from ...runtime.scheduler.tenants import Places
from ..errors import ApiError, to_api_error
from .connection import ClientClosedError

ROUNDS = 8
"""Rounds of the event loop from one beginning to the next."""

LONGEST_WAIT_S = 60.0
"""Official clients do not heed what is longer."""

JITTER = 0.2
"""Share by which waits differ, so that those who were refused together do not come again together."""

MAX_WAITING = 2048
"""Requests of a key that wait for their turn to begin."""

REMEMBERED_ENDS = 64
"""Generations that ended last, by which the pace is measured."""

ASK_AGAIN_S = 1.0
"""Time after which the engine, which refused one, is asked again: it has the last word, since a generation may be over
that a slow reader has not read."""


class Turnstile:
    """Lets one request begin in every eighth round of the event loop, of the key that has begun the fewest of late.

    A round takes as long as all that is ready in it. An answer passes through some fifteen of them; if a hundred
    requests that arrive together began together, each of these would take a hundred times as long. Rounds that are
    short cost next to nothing, so that no less is done in all. Used on the event loop only.
    """

    def __init__(self) -> None:
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()
        self._open = True

    def __len__(self) -> int:
        """The requests that wait."""
        return len(self._waiting)

    async def enter(self, key: str, left: asyncio.Future[None] | None = None) -> None:
        """Waits for the turn of a request of the key's: not at all if none has begun in the last rounds.

        left   is done once the client has gone; None: that is not known

        Raises:
            ApiError: too many of the key's wait.
            ClientClosedError: the client has left before the request's turn.
        """
        if left is not None and left.done():
            raise ClientClosedError
        loop = asyncio.get_running_loop()
        if self._open:
            self._open = False
            loop.call_soon(self._turn, loop, ROUNDS - 1)
            return
        if self._waiting.num_waiting(key) >= MAX_WAITING:
            message = "This key has too many requests that wait to begin. Try again when some have begun."
            raise ApiError(503, "too_many_waiting", message)
        turn = loop.create_future()
        self._waiting.push(key, turn)
        drop = partial(self._drop, key, turn)
        if left is not None:
            left.add_done_callback(drop)
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting.remove(key, turn)
            raise
        finally:
            if left is not None:
                left.remove_done_callback(drop)

    def _drop(self, key: str, turn: asyncio.Future[None], _: asyncio.Future[None]) -> None:
        if self._waiting.remove(key, turn):
            turn.set_exception(ClientClosedError())

    def _turn(self, loop: asyncio.AbstractEventLoop, rounds_left: int) -> None:
        if rounds_left:
            loop.call_soon(self._turn, loop, rounds_left - 1)
            return
        taken = self._waiting.pop()
        self._open = taken is None
        if taken is not None:
            key, turn = taken
            self._waiting.end(key, 1.0)
            if not turn.done():  # it may just have been cancelled
                turn.set_result(None)
            loop.call_soon(self._turn, loop, ROUNDS - 1)


class Door:
    """Refuses generations that the engine has no place for before any work is done, and says when to come again.

    Counts those that are in the engine, as far as the server knows them. Used on the event loop only.

    total     what the engine takes; None: not known
    weights   shares of keys, by name; 1 for others
    """

    def __init__(
        self,
        total: int | None,
        weights: Weights = EQUAL,
        *,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._places = Places(total, weights)
        self._clock = clock
        self._draw = draw
        self._ends = deque([clock()], REMEMBERED_ENDS)
        self._ask_at = clock()

    def most(self, tenant: str) -> int | None:
        """The generations that the tenant may have while there are no others. None: any number."""
        return self._places.most(tenant)

    def check(self, tenant: str) -> None:
        """Raises ApiError, with a time to wait: the engine, which is full, would refuse one more of the tenant's."""
        if self._clock() >= self._ask_at:
            return
        try:
            self._places.check(tenant)
        except OverloadedError as error:
            raise self._answer(error) from error

    @contextmanager
    def prepared(self, tenant: str) -> Iterator[None]:
        """Holds a place while a generation is made ready. Raises ApiError as `check` does."""
        self.check(tenant)
        self._places.take(tenant)
        try:
            yield
        finally:
            self._places.give_back(tenant)

    def together(self, tenant: str, count: int) -> Party:
        """Takes the places of one request's generations.

        Raises:
            ApiError: there are several, and not so many places: none is taken.
        """
        if count > 1:  # of one the engine decides, which may have refused some of several when others have begun
            try:
                self._places.check(tenant, count)
            except OverloadedError as error:
                raise self._answer(error) from error
        return Party(self, self._places, tenant, count)

    def count_end(self) -> None:
        """Takes note that a generation has ended."""
        self._ends.append(self._clock())

    def refused(self, error: OverloadedError) -> ApiError:
        """Takes note that the engine has refused one, and returns the answer."""
        self._ask_at = self._clock() + ASK_AGAIN_S
        return self._answer(error)

    def _answer(self, error: OverloadedError) -> ApiError:
        answer = to_api_error(error)
        answer.retry_after_s = self._wait_s()
        return answer

    def _wait_s(self) -> float:
        """Seconds in which what is in the engine now ends, at the pace of the last ends."""
        pace = (len(self._ends) - 1) / max(self._clock() - self._ends[0], 1e-3)
        wait_s = min(self._places.num_taken / pace, LONGEST_WAIT_S / (1 + JITTER)) if pace else 1.0
        return max(wait_s * (1 + JITTER * (2 * self._draw() - 1)), 1.0)


class Party:
    """Places of one request's generations, which are taken together and given back one by one. Close it when no more of
    them begins."""

    def __init__(self, door: Door, places: Places, tenant: str, count: int) -> None:
        self._door = door
        self._places = places
        self._tenant = tenant
        self._num_free = count
        for _ in range(count):
            places.take(tenant)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Has a generation in one of the places while it is in the engine. One that was refused, or lost with the
        engine, is no measure of the pace."""
        self._num_free -= 1
        ended = True
        try:
            yield
        except (OverloadedError, RequestError, EngineStoppedError, ApiError) as error:
            ended = isinstance(error, ApiError) and error.status != 503
            raise
        finally:
            self._places.give_back(self._tenant)
            if ended:
                self._door.count_end()

    def close(self) -> None:
        for _ in range(self._num_free):
            self._places.give_back(self._tenant)
        self._num_free = 0
