"""Parts of a stream that its reader has not taken yet: bounded, so that a slow reader stops only its own work."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Self, cast

import msgspec

from ...runtime.protocol.errors import ErrorInfo, to_exception
from ...runtime.protocol.program import Delta, Done, Failed, ProgramEvent

MAX_WAITING_BYTES = 32 << 20
"""Bound of the events that wait for one reader; a single one may be larger."""

MAX_ALL_BYTES = 128 << 20
"""Bound for all readers together; past it, readers with more than an equal share waiting are stopped."""

SMALL_BYTES = 64 << 10
"""Bytes of a program's end that is always taken."""

NUM_AT_ONCE = 64
"""Events, or parts, that are taken before others have their turn."""


class Budget:
    """Bytes that wait for all readers of a server."""

    def __init__(self, max_bytes: int = MAX_ALL_BYTES) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.num_readers = 0

    def allows(self, num_bytes: int) -> bool:
        """Tells whether a reader for whom `num_bytes` wait may go on."""
        return self.num_bytes <= self.max_bytes or num_bytes * self.num_readers <= self.max_bytes


class Room:
    """Bytes that wait for one reader, among those of all readers."""

    def __init__(self, budget: Budget, max_bytes: int = MAX_WAITING_BYTES) -> None:
        self.num_bytes = 0
        self._budget = budget
        self._max_bytes = max_bytes

    @property
    def full(self) -> bool:
        """Tells whether what makes more has to stop."""
        return self.num_bytes > self._max_bytes or not self._budget.allows(self.num_bytes)

    def open(self) -> None:
        """Counts the reader from now on."""
        self._budget.num_readers += 1

    def count(self, num_bytes: int) -> None:
        """Takes note that so many bytes more, or less, wait."""
        self.num_bytes += num_bytes
        self._budget.num_bytes += num_bytes

    def close(self) -> None:
        self.count(-self.num_bytes)
        self._budget.num_readers -= 1


class Ahead(AsyncIterator[bytes]):
    """Parts of an answer, made as fast as their work goes on, for a reader that may be slower.

    When too much waits, an EngineError with the code "reader_too_slow" comes in place of all that was not taken, and
    the work ends: `close`, which may be awaited again, ends what `parts` are made of. Close it: that does the same.
    """

    def __init__(
        self,
        parts: AsyncIterator[bytes],
        budget: Budget,
        *,
        close: Callable[[], Awaitable[None]],
        max_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        self._parts = parts
        self._close = close
        self._room = Room(budget, max_bytes)
        self._waiting: deque[bytes] = deque()
        self._arrived = asyncio.Event()
        self._error: Exception | None = None
        self._pump: asyncio.Task[None] | None = None

    async def __anext__(self) -> bytes:
        if self._pump is None:
            self._room.open()
            self._pump = asyncio.ensure_future(self._take_all())
            self._pump.add_done_callback(lambda _: self._arrived.set())
        while not self._waiting:
            if self._pump.done():
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        part = self._waiting.popleft()
        self._room.count(-len(part))
        return part

    async def aclose(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
            self._pump = None
            self._waiting.clear()
            self._room.close()
        await self._close()

    async def _take_all(self) -> None:
        try:
            async with aclosing(cast("AsyncGenerator[bytes]", self._parts)) as parts:
                count = 0
                async for part in parts:
                    if self._room.full:
                        self._error = to_exception(_too_slow(self._room.num_bytes))
                        self._waiting.clear()
                        self._room.count(-self._room.num_bytes)
                        break
                    self._room.count(len(part))
                    self._waiting.append(part)
                    self._arrived.set()
                    count += 1
                    if count % NUM_AT_ONCE == 0:
                        await asyncio.sleep(0)
            await self._close()
        except Exception as error:  # noqa: BLE001  raised again where the parts are taken
            self._error = error


class Backlog(AsyncIterator[ProgramEvent]):
    """The events of one program, taken from the engine as fast as they come, for a reader that may be slower.

    Waiting deltas of one value are merged. When too much waits, the program is stopped, and the reader finds a Failed
    with the code "reader_too_slow" in place of everything it has not taken. Other programs are not affected. Close it:
    that stops the program, unless it is over.
    """

    def __init__(
        self, events: AsyncIterator[ProgramEvent], budget: Budget | None = None, *, max_bytes: int = MAX_WAITING_BYTES
    ) -> None:
        self._events = events
        self._room = Room(budget or Budget(), max_bytes)
        self._waiting: deque[_Entry] = deque()
        self._growing: dict[tuple[int, str], _Entry] = {}
        self._arrived = asyncio.Event()
        self._over = False
        self._error: Exception | None = None
        self._pump: asyncio.Task[None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ProgramEvent:
        if self._pump is None:
            self._room.open()
            self._pump = asyncio.ensure_future(self._take_all())
        while not self._waiting:
            if self._error is not None:
                raise self._error
            if self._over:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        entry = self._waiting.popleft()
        self._room.count(-entry.num_bytes)
        if isinstance(entry.event, Delta):
            self._growing.pop((entry.event.branch, entry.event.name), None)
        return entry.whole()

    async def aclose(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
            self._pump = None
            self._forget()
            self._room.close()

    def _forget(self) -> None:
        self._waiting.clear()
        self._growing.clear()
        self._room.count(-self._room.num_bytes)

    async def _take_all(self) -> None:
        try:
            async with aclosing(cast("AsyncGenerator[ProgramEvent]", self._events)) as events:
                count = 0
                async for event in events:
                    if not self._take(event):
                        break
                    count += 1
                    if count % NUM_AT_ONCE == 0:
                        await asyncio.sleep(0)
        except Exception as error:  # noqa: BLE001  raised again where the events are taken
            self._error = error
        finally:
            self._over = True
            self._arrived.set()

    def _take(self, event: ProgramEvent) -> bool:
        """Returns False if too much waits. A program's own end is taken, unless it is large."""
        if self._room.full and not (isinstance(event, Done | Failed) and _size(event) <= SMALL_BYTES):
            failed = Failed(error=_too_slow(self._room.num_bytes))
            self._forget()
            self._add(failed)
            return False
        self._add(event)
        return True

    def _add(self, event: ProgramEvent) -> None:
        self._arrived.set()
        if isinstance(event, Delta):
            place = event.branch, event.name
            grown = self._growing.get(place)
            if grown is not None:
                self._room.count(grown.grow(event))
                return
            entry = self._growing[place] = _Entry(event)
        else:
            entry = _Entry(event)
            self._growing.clear()  # nothing that is said later comes before this
        self._room.count(entry.num_bytes)
        self._waiting.append(entry)


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


def _too_slow(num_bytes: int) -> ErrorInfo:
    message = (
        f"{num_bytes} bytes were waiting for a client that did not read them: the work was stopped, and they were "
        "dropped"
    )
    return ErrorInfo(code="reader_too_slow", message=message)
