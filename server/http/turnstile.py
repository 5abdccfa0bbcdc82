"""The way onto the event loop, through which keys send their requests in turn."""

from __future__ import annotations

import asyncio

from ...constrain.workers.turns import FairQueue

ROUNDS = 8
"""Rounds of the event loop from one beginning to the next."""


class Turnstile:
    """Lets one request begin in every eighth round of the event loop, of the key that has begun the fewest of late.

    A round takes as long as all that is ready in it. An answer passes through some fifteen of them; if a hundred
    requests that arrive together began together, each of these would take a hundred times as long. Rounds that are
    short cost next to nothing, so that no less is done in all. Used on the event loop only.
    """

    def __init__(self) -> None:
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()
        self._open = True

    async def enter(self, key: str) -> None:
        """Waits for the turn of a request of the key's: not at all if none has begun in the last rounds."""
        loop = asyncio.get_running_loop()
        if self._open:
            self._open = False
            loop.call_soon(self._turn, loop, ROUNDS - 1)
            return
        turn = loop.create_future()
        self._waiting.push(key, turn)
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting.remove(key, turn)
            raise

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
