"""Server-sent events: how they are written, and a response that ends when its reader does."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..errors import ShuttingDownError, to_api_error
from .connection import ClientClosedError, attend
from .gate import request_id_of
from .lifecycle import Lifecycle

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"

logger = logging.getLogger("bough.server")


def event(value: object) -> bytes:
    """One event: a line of JSON."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


class EventStream(Response):
    """Sends `events`, one at a time. However it ends, `close` is awaited.

    An error becomes the last event, and then nothing marks a regular end.
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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                await attend(self._send_events(send, request_id_of(scope)), receive, self._lifecycle)
            except ShuttingDownError as error:
                await _send_part(send, b"data: " + error.body() + b"\n\n")
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (ClientClosedError, OSError):
            logger.debug("a client left its stream")
        finally:
            await self._close()

    async def _send_events(self, send: Send, request_id: str) -> None:
        try:
            async for part in self._events:
                await _send_part(send, part)
        except (ClientClosedError, OSError):
            raise
        except Exception as error:  # the status is sent, so the error goes into the stream
            answer = to_api_error(error, grammar_param=self._grammar_param)
            if answer.status == 500:
                logger.exception("the stream of request %s failed", request_id)
            await _send_part(send, b"data: " + answer.body() + b"\n\n")


async def _send_part(send: Send, part: bytes) -> None:
    await send({"type": "http.response.body", "body": part, "more_body": True})
