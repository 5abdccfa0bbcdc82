"""Parts of a stream that its reader has not taken yet: bounded, so that a slow reader stops only its own work."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Protocol, TypeVar, cast

import msgspec

from ...runtime.protocol.errors import ErrorInfo, to_exception
from ...runtime.protocol.program import Delta, Done, Failed, ProgramEvent

T = TypeVar("T")

MAX_WAITING_BYTES = 32 << 20
"""Bound of what waits for one reader; a single item may be larger."""

MAX_ALL_BYTES = 128 << 20
"""Bound for all readers together; past it, readers with more than an equal share waiting are stopped."""

SMALL_BYTES = 64 << 10
"""Bytes of a program's end that is always taken."""

NUM_AT_ONCE = 64
"""Items that are taken before others have their turn."""


class Budget:
    """Bytes that wait for all readers of a server."""

    def __init__(self, max_bytes: int = MAX_ALL_BYTES) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.num_readers = 0

    def allows(self, num_bytes: int) -> bool:
        """Tells whether a reader for whom `num_bytes` wait may go on."""
        return self.num_bytes <= self.max_bytes or num_bytes * self.num_readers <= self.max_bytes


class Waiting(Protocol[T]):
    """Items that wait for one reader, in order."""

    def __len__(self) -> int: ...

    def put(self, item: T) -> int:
        """Adds an item; returns how many bytes more wait."""

    def take(self) -> tuple[T, int]:
        """Takes the first item, with its bytes."""

    def clear(self) -> None: ...

    def must_take(self, item: T) -> bool:
        """Tells whether an item is taken however much waits."""

    def failure(self, error: ErrorInfo) -> T | None:
        """Returns the item that tells of an error; None: it is raised."""


async def _close_nothing() -> None:
    """Closes nothing."""


class Backlog(AsyncIterator[T]):
    """Items of one stream, made as fast as their work goes on, for a reader that may be slower.

    When too much waits, the reader finds an error with the code "reader_too_slow" in place of everything that it has
    not taken, and the work ends: that of other readers is not affected. `close`, which may be awaited again, ends what
    `items` are made of, where to close them does not. Close it: that ends the work, unless it is over.
    """

    def __init__(
        self,
        items: AsyncIterator[T],
        waiting: Waiting[T],
        budget: Budget,
        *,
        close: Callable[[], Awaitable[None]] = _close_nothing,
        max_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        self._items = items
        self._waiting = waiting
        self._budget = budget
        self._close = close
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._arrived = asyncio.Event()
        self._error: Exception | None = None
        self._pump: asyncio.Task[None] | None = None

    async def __anext__(self) -> T:
        if self._pump is None:
            self._budget.num_readers += 1
            self._pump = asyncio.ensure_future(self._take_all())
            self._pump.add_done_callback(lambda _: self._arrived.set())
        while not self._waiting:
            if self._pump.done():
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        item, num_bytes = self._waiting.take()
        self._count(-num_bytes)
        return item

    async def aclose(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
            self._pump = None
            self._forget()
            self._budget.num_readers -= 1
        await self._close()

    async def _take_all(self) -> None:
        try:
            async with aclosing(cast("AsyncGenerator[T]", self._items)) as items:
                num_taken = 0
                async for item in items:
                    if self._is_full and not self._waiting.must_take(item):
                        self._give_up()
                        break
                    self._put(item)
                    num_taken += 1
                    if num_taken % NUM_AT_ONCE == 0:
                        await asyncio.sleep(0)
            await self._close()
        except Exception as error:  # noqa: BLE001  raised again where the items are taken
            self._error = error

    @property
    def _is_full(self) -> bool:
        return self._num_bytes > self._max_bytes or not self._budget.allows(self._num_bytes)

    def _give_up(self) -> None:
        """Puts an error in the place of all that waits."""
        error = ErrorInfo(
            code="reader_too_slow",
            message=f"{self._num_bytes} bytes were waiting for a client that did not read them: the work was stopped, "
            "and they were dropped",
        )
        self._forget()
        last = self._waiting.failure(error)
        if last is None:
            self._error = to_exception(error)
        else:
            self._put(last)

    def _put(self, item: T) -> None:
        self._count(self._waiting.put(item))
        self._arrived.set()

    def _forget(self) -> None:
        self._waiting.clear()
        self._count(-self._num_bytes)

    def _count(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self._budget.num_bytes += num_bytes


class WaitingParts:
    """Parts of an answer that wait."""

    def __init__(self) -> None:
        self._parts: deque[bytes] = deque()

    def __len__(self) -> int:
        return len(self._parts)

    def put(self, item: bytes) -> int:
        self._parts.append(item)
        return len(item)

    def take(self) -> tuple[bytes, int]:
        part = self._parts.popleft()
        return part, len(part)

    def clear(self) -> None:
        self._parts.clear()

    def must_take(self, item: bytes) -> bool:
        return False

    def failure(self, error: ErrorInfo) -> None:
        return None


class WaitingEvents:
    """Events of a program that wait. Deltas of one value are merged."""

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque()
        self._growing: dict[tuple[int, str], _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, item: ProgramEvent) -> int:
        if isinstance(item, Delta):
            place = item.branch, item.name
            grown = self._growing.get(place)
            if grown is not None:
                return grown.grow(item)
            entry = self._growing[place] = _Entry(item)
        else:
            entry = _Entry(item)
            self._growing.clear()  # nothing that is said later comes before this
        self._entries.append(entry)
        return entry.num_bytes

    def take(self) -> tuple[ProgramEvent, int]:
        entry = self._entries.popleft()
        if isinstance(entry.event, Delta):
            self._growing.pop((entry.event.branch, entry.event.name), None)
        return entry.whole(), entry.num_bytes

    def clear(self) -> None:
        self._entries.clear()
        self._growing.clear()

    def must_take(self, item: ProgramEvent) -> bool:
        """A program's own end is taken, unless it is large."""
        return isinstance(item, Done | Failed) and _size(item) <= SMALL_BYTES

    def failure(self, error: ErrorInfo) -> ProgramEvent:
        return Failed(error=error)


class _Entry:
    """An event that waits, with what later deltas have added to it."""

    __slots__ = ("event", "more", "num_bytes")

    def __init__(self, event: ProgramEvent) -> None:
        self.event = event
        self.more: list[Delta] = []
        self.num_bytes = _size(event)

    def grow(self, delta: Delta) -> int:
        """Adds a delta of the same value; returns how many bytes more wait."""
        self.more.append(delta)
        num_bytes = _size(delta) if delta.logprobs else len(delta.text)
        self.num_bytes += num_bytes
        return num_bytes

    def whole(self) -> ProgramEvent:
        if not self.more:
            return self.event
        assert isinstance(self.event, Delta)
        deltas = (self.event, *self.more)
        return Delta(
            self.event.branch,
            self.event.name,
            "".join(delta.text for delta in deltas),
            tuple(entry for delta in deltas for entry in delta.logprobs),
            {token: text for delta in deltas for token, text in delta.token_texts.items()},
        )


def _size(event: ProgramEvent) -> int:
    if isinstance(event, Done):  # its texts may be large: to encode them would hold up the event loop
        return sum(map(sys.getsizeof, event.texts.values()))
    return len(msgspec.msgpack.encode(event))
