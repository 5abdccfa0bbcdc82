"""Streams of the engine as one stream of server-sent events, which ends when its reader leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Generic, Self, TypeVar, cast

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..errors import ApiError, ShuttingDownError, to_api_error
from .connection import ClientClosedError, Lifecycle, run_while_connected
from .gate import note_error, request_id_of
from .protocol import PROBE_OF_ANSWER

T = TypeVar("T")

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"

logger = logging.getLogger("bough.server")


class Merged(Generic[T]):
    """Iterates over (index of the stream, item) in order of arrival, and None after each `quiet_s` without any.

    The first exception of any stream is raised here. `close` (or leaving `async with`) closes every stream, which
    aborts its work, and returns once they are closed; then `at_close` is called. `room` items of each stream may wait
    to be taken.
    """

    def __init__(
        self,
        streams: Sequence[AsyncIterator[T]],
        *,
        quiet_s: float | None = None,
        room: int = 4,
        at_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._quiet_s = quiet_s
        self._at_close = at_close
        self._arrived: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue(
            maxsize=room * (len(streams) + 1)
        )
        self._num_open = len(streams)
        self._first: tuple[int, T] | None = None
        self._pumps = [asyncio.ensure_future(self._pump(index, stream)) for index, stream in enumerate(streams)]

    async def start(self) -> None:
        """Waits for the first item of all, `quiet_s` at most: a refusal is raised before anything is answered."""
        if self._num_open:
            with suppress(TimeoutError):
                self._first = await self._next(self._quiet_s)

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
        self._pumps.clear()  # a cancelled task keeps its frames, which keep this: only collections would end it
        self._at_close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def event(value: object) -> bytes:
    """Writes one event: a line of JSON."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


class EventStream(Response):
    """Sends `events`, one at a time. `close` is awaited however it ends.

    An error becomes the last event, in place of the mark of a regular end. An event of which only a part was sent ends
    before it.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        *,
        close: Callable[[], Awaitable[None]],
        lifecycle: Lifecycle,
        grammar_param: str = "response_format",
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._close = close
        self._lifecycle = lifecycle
        self._grammar_param = grammar_param
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
        await _send_part(send, end_of_part + b"data: " + error.body() + b"\n\n")


async def _send_part(send: Send, part: bytes) -> None:
    await send({"type": "http.response.body", "body": part, "more_body": True})
