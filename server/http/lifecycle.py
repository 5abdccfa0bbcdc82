"""When work ends: the server drains and then expires, or the client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import ShuttingDownError

if TYPE_CHECKING:
    from starlette.types import Receive

T = TypeVar("T")


class Lifecycle:
    """Serving, then draining, then expired. Only moves on. Changed and awaited on the event loop.

    num_running     requests that are being answered, but for those that look at the server itself
    """

    def __init__(self) -> None:
        self.draining = False
        self.num_running = 0
        self.expired = asyncio.Event()

    def drain(self) -> None:
        """Refuses new work from now on. Safe in a signal handler."""
        self.draining = True

    def expire(self) -> None:
        """Stops what still runs."""
        self.draining = True
        self.expired.set()


class ClientClosedError(Exception):
    """The client has disconnected."""


async def attend(work: Coroutine[Any, Any, T], receive: Receive, lifecycle: Lifecycle) -> T:
    """Returns the result of `work`, which is cancelled when the client disconnects. The body must have been read.

    This watches the connection itself: frameworks cancel streams in some versions only, and plain answers never.

    Raises:
        ClientClosedError: the client disconnected.
        ShuttingDownError: the server's time to finish is over.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    expired = asyncio.ensure_future(lifecycle.expired.wait())
    try:
        await asyncio.wait({working, gone, expired}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientClosedError if gone.done() else ShuttingDownError()
    finally:
        for task in (working, gone, expired):
            task.cancel()
        await asyncio.gather(working, gone, expired, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
