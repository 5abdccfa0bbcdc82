"""The client's end of the line: its body comes in within bounds, and its work stops when it goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.types import Receive

from ..errors import ApiError, ShuttingDownError
from .lifecycle import Lifecycle

T = TypeVar("T")


class ClientClosedError(Exception):
    """The client is gone: there is nobody to answer."""


async def read_body(request: HttpRequest, *, limit: int, timeout_s: float) -> bytes:
    """The body of a JSON request.

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


async def attend(work: Coroutine[Any, Any, T], receive: Receive, lifecycle: Lifecycle) -> T:
    """The result of `work`, which is cancelled as soon as nobody waits for it. The body must have been read.

    This watches the connection itself: frameworks cancel streams in some versions only, and plain answers never.

    Raises:
        ClientClosedError: the client went away.
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
