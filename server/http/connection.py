"""A client's connection: its body, received within bounds and decoded, and the end of the work for it.

Work ends early when the client goes away, or when the server has drained and its time is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ..errors import ApiError, ShuttingDownError, from_decode_error

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest
    from starlette.types import Receive

B = TypeVar("B", bound=msgspec.Struct)
T = TypeVar("T")


class ClientClosedError(Exception):
    """The client has disconnected."""


# The body


async def read_body(request: HttpRequest, *, limit: int, timeout_s: float) -> bytes:
    """Receives the body of a JSON request.

    Raises:
        ApiError: it is not JSON by its headers, too large, or too slow.
        ClientClosedError: the client left before the end.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ApiError(415, "unsupported_media_type", "The content-type must be application/json.")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "unsupported_media_type", "A content-encoding is not supported.")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise _too_large(limit)
    try:
        async with asyncio.timeout(timeout_s):
            return await _receive_body(request.receive, limit)
    except TimeoutError as error:
        raise ApiError(408, "request_timeout", f"The body did not arrive within {timeout_s:g} s.") from error


async def _receive_body(receive: Receive, limit: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientClosedError
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        if not message.get("more_body", False):
            return bytes(body)


def _too_large(limit: int) -> ApiError:
    return ApiError(413, "request_too_large", f"The body may have at most {limit} bytes.")


@lru_cache(maxsize=32)
def _decoder(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def decode(data: bytes, kind: type[B]) -> B:
    """Decodes a body of `kind`. Unknown fields are skipped.

    Raises:
        ApiError: the data is not JSON, or not of this kind; `param` is the path of the field to blame.
    """
    try:
        data.decode()  # raw parts would pass unchecked
        body: B = _decoder(kind).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise from_decode_error(error) from error
    return body


# The end of the work


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
