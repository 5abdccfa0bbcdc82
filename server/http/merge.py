"""Several streams of the engine, side by side, as one. Leaving it ends them all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Generic, Self, TypeVar, cast

T = TypeVar("T")


class Merged(Generic[T]):
    """Iterates over (index of the stream, item) in order of arrival, and None after each `quiet_s` without any.

    The first exception of any stream is raised here. `close` (or leaving `async with`) closes every stream, which
    aborts its work, and returns once they are closed. `room` items of each stream may wait to be taken.
    """

    def __init__(self, streams: Sequence[AsyncIterator[T]], *, quiet_s: float | None = None, room: int = 4) -> None:
        self._quiet_s = quiet_s
        self._arrived: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue(
            maxsize=room * (len(streams) + 1)
        )
        self._num_open = len(streams)
        self._first: tuple[int, T] | None = None
        self._pumps = [asyncio.ensure_future(self._pump(index, stream)) for index, stream in enumerate(streams)]

    async def start(self) -> None:
        """Waits for the first item of all, so that a refusal is raised before anything is answered."""
        if self._num_open:
            self._first = await self._next(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, T] | None:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        while self._num_open:
            try:
                item = await self._next(self._quiet_s)
            except TimeoutError:
                return None
            if item is not None:
                return item
        raise StopAsyncIteration

    async def _next(self, timeout_s: float | None) -> tuple[int, T] | None:
        """The next item; None when a stream has ended."""
        if self._arrived.empty() and timeout_s is not None:
            async with asyncio.timeout(timeout_s):  # `wait_for` loses a cancellation that comes with an item
                item = await self._arrived.get()
        else:
            item = await self._arrived.get()
        if isinstance(item, Exception):
            raise item
        if item is None:
            self._num_open -= 1
        return item

    async def _pump(self, index: int, stream: AsyncIterator[T]) -> None:
        try:
            async with aclosing(cast("AsyncGenerator[T]", stream)) as items:
                async for item in items:
                    await self._arrived.put((index, item))
        except Exception as error:  # noqa: BLE001 (raised again where the items are taken)
            await self._arrived.put(error)
        else:
            await self._arrived.put(None)

    async def close(self) -> None:
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
