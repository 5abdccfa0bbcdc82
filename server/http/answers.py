"""Responses to clients: errors, event streams, and limits on the unread data of slow readers."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing, suppress
from typing import Generic, Protocol, Self, TypeVar, cast

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ...runtime.protocol.errors import ErrorInfo, to_exception
from ...runtime.protocol.program import Delta, Done, Failed, ProgramEvent, Value
from ...runtime.protocol.request import TokenLogprob
from ..errors import ApiError, ShuttingDownError, to_api_error
from .access import request_id_of
from .connection import ClientClosedError, Lifecycle, run_while_connected
from .dialect import dialect_of
from .protocol import PROBE_OF_ANSWER

T = TypeVar("T")

PING = b": ping\n\n"

MAX_WAITING_BYTES = 32 << 20
"""Bytes waiting for one reader of a stream beyond which no item is accepted; the last one may overshoot."""

MAX_ALL_BYTES = 128 << 20
"""Most bytes that wait for all readers; beyond, readers with more than an equal share of it are stopped."""

SMALL_BYTES = 64 << 10
"""Largest terminal event of a program that is accepted however much waits."""

ENTRY_BYTES = 384
"""Bytes of memory that an event takes which waits, without its content."""

MAX_ENCODED_LOGPROBS = 128
"""Tokens of an event with log-probabilities beyond which it is not encoded to wait."""

LOGPROB_BYTES, OTHER_BYTES, TOKEN_TEXT_BYTES = 176, 120, 180
"""Bytes of memory of a token with its log-probability, of an alternative, and of the text of a token."""

MAX_MERGED_BYTES = 256 << 10
"""Bytes from which on a delta grows no more: it is encoded for the client at once, which holds up the event loop."""

NUM_AT_ONCE = 64
"""Items accepted before other tasks have a turn."""

PIECE_BYTES = 64 << 10
"""Most bytes handed to a connection at a time. Smaller answers do not count as large."""

MAX_UNSENT_BYTES = 256 << 20
"""Most unsent bytes of all large answers together."""

logger = logging.getLogger("bough.server")


# Errors


class ErrorResponse(Response):
    """Answer with an error to the request of `scope`, which is also noted for log and metrics."""

    def __init__(self, error: ApiError, scope: Scope) -> None:
        dialect = dialect_of(scope)
        body, status = dialect.body(error, request_id_of(scope)), dialect.status(error)
        super().__init__(body, status, headers=dict(error.headers), media_type="application/json")
        self._code = error.code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        note_error(scope, self._code)
        await super().__call__(scope, receive, send)


def note_error(scope: Scope, code: str) -> None:
    """Notes the code of the error with which a request ends, for log and metrics."""
    scope["bough.error"] = code


# Streams of the engine, merged into one


class Merged(Generic[T]):
    """Several streams as one: yields (index of the stream, item) in order of arrival, and None after `quiet_s` of rest.

    The first exception of any stream is raised here. `close` (or leaving `async with`) closes every stream, which
    aborts its request or drops its program unless that is over (`runtime.client.streams.aiterate`), waits for that,
    and calls `at_close`. At most `room` items for each stream, and as many more, wait to be taken.
    """

    def __init__(
        self,
        streams: Sequence[AsyncIterator[T]],
        *,
        quiet_s: float | None = None,
        room: int = 4,
        at_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.quiet_s = quiet_s
        self._at_close = at_close
        self._arrived: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue(
            maxsize=room * (len(streams) + 1)
        )
        self._num_open = len(streams)
        self._first: tuple[int, T] | None = None
        self._pumps = [asyncio.ensure_future(self._pump(index, stream)) for index, stream in enumerate(streams)]

    async def start(self) -> None:
        """Waits for the first item, at most `quiet_s`, so that a refusal is raised before the answer begins."""
        if self._num_open:
            with suppress(TimeoutError):
                self._first = await self._next(self.quiet_s)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, T] | None:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        while self._num_open:
            try:
                item = await self._next(self.quiet_s)
            except TimeoutError:
                return None
            if item is not None:
                return item
        raise StopAsyncIteration

    async def _next(self, timeout_s: float | None) -> tuple[int, T] | None:
        """Returns the next item; None when a stream has ended."""
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
        self._pumps.clear()  # a cancelled task keeps its frames, which keep this: only collections would end it
        self._at_close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


# Backlogs of streams: a slow reader stops only its own work


class Budget:
    """Bytes that wait for all readers of a server."""

    def __init__(self, max_bytes: int = MAX_ALL_BYTES) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.num_readers = 0

    def allows(self, num_bytes: int) -> bool:
        """True if a reader for whom `num_bytes` wait may go on: all fit, or it has at most an equal share."""
        return self.num_bytes <= self.max_bytes or num_bytes * self.num_readers <= self.max_bytes


class Waiting(Protocol[T]):
    """Items that wait for one reader, in order."""

    def __len__(self) -> int: ...

    def put(self, item: T) -> int:
        """Adds an item; returns the bytes that it adds."""

    def take(self) -> tuple[T, int]:
        """Removes and returns the first item, with its bytes."""

    def clear(self) -> None: ...

    def must_take(self, item: T) -> bool:
        """True if an item is accepted however much waits."""

    def failure(self, error: ErrorInfo) -> T | None:
        """Returns the item that reports an error; None: the error is raised."""


async def _close_nothing() -> None:
    """Closes nothing."""


class Backlog(AsyncIterator[T]):
    """Buffer between a stream, which is read at full speed, and a reader that may be slower.

    When too much waits, everything that the reader has not taken is replaced by an error with the code
    "reader_too_slow", and the stream is closed, which ends its work; other readers are not affected. A backlog must be
    closed (`aclose`): that ends the work, unless it is over.

    close    ends the work if closing `items` does not; awaited after `items` and in `aclose`, so perhaps twice
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
        """Replaces all waiting items by an error."""
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
    """Waiting parts of an answer, as bytes."""

    def __init__(self) -> None:
        self._parts: deque[bytes] = deque()

    def __len__(self) -> int:
        return len(self._parts)

    def put(self, item: bytes) -> int:
        self._parts.append(item)
        return sys.getsizeof(item)

    def take(self) -> tuple[bytes, int]:
        part = self._parts.popleft()
        return part, sys.getsizeof(part)

    def clear(self) -> None:
        self._parts.clear()

    def must_take(self, item: bytes) -> bool:
        return False

    def failure(self, error: ErrorInfo) -> None:
        return None


class WaitingEvents:
    """Waiting events of a program. Deltas of one value are merged."""

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque()
        self._growing: dict[tuple[int, str], _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, item: ProgramEvent) -> int:
        if isinstance(item, Delta):
            grown = self._growing.get((item.branch, item.name))
            if grown is not None and grown.num_bytes < MAX_MERGED_BYTES and not _is_large(item):
                return grown.grow(item)
        entry = _Entry(item)
        if entry.place is not None:
            self._growing[entry.place] = entry
        else:
            self._growing.clear()  # later deltas must not be merged into events before this one
        self._entries.append(entry)
        return entry.num_bytes

    def take(self) -> tuple[ProgramEvent, int]:
        entry = self._entries.popleft()
        if entry.place is not None:
            self._growing.pop(entry.place, None)
        return entry.whole(), entry.num_bytes

    def clear(self) -> None:
        self._entries.clear()
        self._growing.clear()

    def must_take(self, item: ProgramEvent) -> bool:
        """True for a program's terminal event, unless it is large."""
        return isinstance(item, Done | Failed) and _size(item) <= SMALL_BYTES

    def failure(self, error: ErrorInfo) -> ProgramEvent:
        return Failed(error=error)


class _Entry:
    """A waiting event, with later deltas merged into it.

    It is kept encoded: objects take several times the bytes, and nobody could tell how many. What is large stays an
    object, since to encode and decode it would hold up the event loop.
    """

    __slots__ = ("_event", "_num_scores", "_scores", "_text", "num_bytes", "place")

    def __init__(self, event: ProgramEvent) -> None:
        self.place = (event.branch, event.name) if isinstance(event, Delta) else None
        # A copy: what the encoder returns is cut off from a larger buffer, which stays.
        self._event = event if _is_large(event) else bytearray(msgspec.msgpack.encode(event))
        self._text: bytearray | None = None
        self._scores = bytearray()
        self._num_scores = 0
        held = self._event
        self.num_bytes = ENTRY_BYTES + (sys.getsizeof(held) if isinstance(held, bytearray) else _size(held))

    def grow(self, delta: Delta) -> int:
        """Adds a delta of the same value; returns how many bytes more wait."""
        if self._text is None:
            self._text = bytearray()
        before = sys.getsizeof(self._text) + sys.getsizeof(self._scores)
        self._text += delta.text.encode()
        if delta.logprobs or delta.token_texts:
            self._scores += msgspec.msgpack.encode((delta.logprobs, delta.token_texts))
            self._num_scores += 1
        num_bytes = sys.getsizeof(self._text) + sys.getsizeof(self._scores) - before
        self.num_bytes += num_bytes
        return num_bytes

    def whole(self) -> ProgramEvent:
        event = _EVENTS.decode(self._event) if isinstance(self._event, bytearray) else self._event
        if self._text is None:
            return event
        assert isinstance(event, Delta)
        added = _SCORES.decode(b"\xdd" + self._num_scores.to_bytes(4, "big") + self._scores)  # an array of them
        scores = [(event.logprobs, event.token_texts), *added]
        return Delta(
            event.branch,
            event.name,
            event.text + self._text.decode(),
            tuple(entry for logprobs, _ in scores for entry in logprobs),
            {token: text for _, texts in scores for token, text in texts.items()},
        )


_EVENTS: msgspec.msgpack.Decoder[ProgramEvent] = msgspec.msgpack.Decoder(ProgramEvent)
_SCORES = msgspec.msgpack.Decoder(tuple[tuple[tuple[TokenLogprob, ...], dict[int, str]], ...])


def _is_large(event: ProgramEvent) -> bool:
    """Tells whether an event may be large: the end of a program, or one with many log-probabilities."""
    return isinstance(event, Done) or (
        isinstance(event, Delta | Value) and len(event.logprobs or ()) > MAX_ENCODED_LOGPROBS
    )


def _size(event: ProgramEvent) -> int:
    """Returns about how many bytes of memory an event takes."""
    match event:
        case Done():
            return sum(map(sys.getsizeof, event.texts.values()))
        case Delta() | Value() if event.logprobs:
            texts = sys.getsizeof(event.text) + TOKEN_TEXT_BYTES * len(event.token_texts)
            return texts + size_of_logprobs(event.logprobs)
    return len(msgspec.msgpack.encode(event))


def size_of_logprobs(entries: Collection[TokenLogprob]) -> int:
    """Returns about how many bytes of memory log-probabilities take."""
    return LOGPROB_BYTES * len(entries) + OTHER_BYTES * sum(len(entry.top) for entry in entries)


# Server-sent events, which end when their reader leaves


class EventStream(Response):
    """Answer that sends `events` one by one until the client disconnects; then, or at its end, awaits `close`.

    An error becomes the last event, in place of the mark of a regular end, as `write_error` has it, or else the
    request's dialect. If the event before was being sent, it is ended first.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        *,
        close: Callable[[], Awaitable[None]],
        lifecycle: Lifecycle,
        grammar_param: str = "response_format",
        write_error: Callable[[ApiError], bytes] | None = None,
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._close = close
        self._lifecycle = lifecycle
        self._grammar_param = grammar_param
        self._write_error = write_error
        self._is_sending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[PROBE_OF_ANSWER] = PING
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                await run_while_connected(self._send_events(scope, send), receive, self._lifecycle)
            except ShuttingDownError as error:
                await self._send_error(scope, send, error)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (ClientClosedError, OSError):
            logger.debug("a client left its stream")
        finally:
            await self._close()

    async def _send_events(self, scope: Scope, send: Send) -> None:
        try:
            async for part in self._events:
                self._is_sending = True
                await _send_part(send, part)
                self._is_sending = False
        except (ClientClosedError, OSError):
            raise
        except Exception as error:  # the status is sent, so the error goes into the stream
            answer = to_api_error(error, grammar_param=self._grammar_param)
            if answer.status == 500:
                logger.exception("the stream of request %s failed", request_id_of(scope))
            await self._send_error(scope, send, answer)

    async def _send_error(self, scope: Scope, send: Send, error: ApiError) -> None:
        note_error(scope, error.code)
        end_of_part = b"\n\n" if self._is_sending else b""
        if self._write_error is not None:
            told = self._write_error(error)
        else:
            told = dialect_of(scope).failure(error, request_id_of(scope))
        await _send_part(send, end_of_part + told)


async def _send_part(send: Send, part: bytes) -> None:
    await send({"type": "http.response.body", "body": part, "more_body": True})


# Large answers, whose memory is shared among keys, so that no key's readers take all of it


class Unsent:
    """Unsent bytes of large answers, by key.

    A key may have as many as are still free: one alone gets half, two that want all get a third each, and there is
    always room for another one (dynamic thresholds; Choudhury and Hahne, IEEE/ACM ToN 6(2), 1998).
    """

    def __init__(self, max_bytes: int = MAX_UNSENT_BYTES) -> None:
        self.max_bytes = max_bytes
        self._of: Counter[str] = Counter()

    @property
    def num_bytes(self) -> int:
        return self._of.total()

    def hold(self, key: str, num_bytes: int) -> None:
        """Counts bytes of an answer. Raises ApiError if they are more than the key may have."""
        if self._of[key] + num_bytes > self.max_bytes - self.num_bytes:
            message = "Too much answer data is waiting to be read: read your pending answers, then try again."
            raise ApiError(503, "engine_overloaded", message, retry_after_s=1.0)
        self._of[key] += num_bytes

    def release(self, key: str, num_bytes: int) -> None:
        self._of[key] -= num_bytes
        if not self._of[key]:
            del self._of[key]


class Pieces:
    """Sends the messages of an answer, large ones in pieces, and counts their unsent bytes for `key`.

    No probe may be sent between the pieces of a message, so it is taken out of the `scope` meanwhile, and stays out if
    the rest is given up.
    """

    def __init__(self, unsent: Unsent, send: Send, scope: Scope) -> None:
        self.key = ""
        self._unsent = unsent
        self._send = send
        self._scope = scope
        self._num_held = 0

    async def send(self, message: Message) -> None:
        """Sends a message. Raises ApiError, before any of it is sent, if it is too large for the key."""
        if message["type"] == "http.response.start":
            length = Headers(raw=message["headers"]).get("content-length", "0")
            self._hold(int(length))  # of an answer in one part, so that it is refused before its status is sent
        elif len(body := message.get("body", b"")) > PIECE_BYTES:
            await self._send_in_pieces(body, more_body=message.get("more_body", False))
            return
        await self._send(message)

    async def _send_in_pieces(self, body: bytes, *, more_body: bool) -> None:
        if not self._num_held:
            self._hold(len(body))
        probe = self._scope.pop(PROBE_OF_ANSWER, None)
        for start in range(0, len(body), PIECE_BYTES):
            end = min(start + PIECE_BYTES, len(body))
            more = more_body or end < len(body)
            await self._send({"type": "http.response.body", "body": body[start:end], "more_body": more})
            self._release(end - start)
        if probe is not None:
            self._scope[PROBE_OF_ANSWER] = probe

    def close(self) -> None:
        """Takes the unsent rest off the count."""
        self._release(self._num_held)

    def _hold(self, num_bytes: int) -> None:
        if num_bytes > PIECE_BYTES:
            self._unsent.hold(self.key, num_bytes)
            self._num_held += num_bytes

    def _release(self, num_bytes: int) -> None:
        num_bytes = min(num_bytes, self._num_held)
        if num_bytes:
            self._num_held -= num_bytes
            self._unsent.release(self.key, num_bytes)
