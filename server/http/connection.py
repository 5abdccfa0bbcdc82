"""Client connections: receives and decodes a body within limits, and ends the client's work when it disconnects.

Work also ends when the server has drained and its time is over (`run_while_connected`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from ...constrain.workers.decoders import json_decoder
from ..errors import ApiError, ShuttingDownError, from_decode_error
from .access import Visit, visit_of

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest
    from starlette.types import Receive

B = TypeVar("B", bound=msgspec.Struct)
T = TypeVar("T")

LARGE_BODY = 64 << 10
"""Bytes of a body from which on its parts are counted, and work on it is moved off the event loop."""

MAX_PARTS = 1 << 16
"""Most objects, lists and members of objects in a large body: each takes a microsecond, in which nothing else runs."""
MAX_ITEMS = 1 << 17
"""Most commas in a large body, outside of its texts, unless it may hold more token ids."""
MAX_TOKEN_IDS = 1 << 20
"""Most commas in a large body that may hold lists of token ids."""


class ClientClosedError(Exception):
    """The client has disconnected."""


# The body


async def read_body(request: HttpRequest, *, limit: int, timeout_s: float) -> bytes:
    """Receives the body of a JSON request.

    Raises:
        ApiError: its headers do not say JSON, it is too large or too slow, or the key's bodies are too large together.
        ClientClosedError: the client disconnected before the end.
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
            return await _receive_body(request.receive, limit, visit_of(request.scope))
    except TimeoutError as error:
        raise ApiError(408, "request_timeout", f"The body did not arrive within {timeout_s:g} s.") from error


async def _receive_body(receive: Receive, limit: int, visit: Visit) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientClosedError
        part = message.get("body", b"")
        visit.hold(len(part))
        body += part
        if len(body) > limit:
            raise _too_large(limit)
        if not message.get("more_body", False):
            return bytes(body)


def _too_large(limit: int) -> ApiError:
    return ApiError(413, "request_too_large", f"The body may have at most {limit} bytes.")


@lru_cache(maxsize=32)
def _decoder(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    return json_decoder(kind)


def decode(data: bytes, kind: type[B], *, max_items: int = MAX_ITEMS) -> B:
    """Decodes a body of `kind`, with at most `max_items` commas if it is large. Unknown fields are skipped.

    Raises:
        ApiError: the data is not JSON or not of this kind, with the path of the faulty field as `param`; or it has too
            many parts, or too long a list.
    """
    check_parts(data, max_items=max_items)
    try:
        data.decode()  # msgspec does not check raw parts for UTF-8
        body: B = _decoder(kind).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise from_decode_error(error) from error
    return body


def check_parts(*texts: bytes, max_items: int = MAX_ITEMS, param: str | None = None) -> None:
    """Checks that JSON texts do not take too long to decode; small ones, of LARGE_BODY in all, always pass.

    Raises:
        ApiError: they have too many parts or commas. Its `param` is the given one, or names the longest list.
    """
    if sum(map(len, texts)) <= LARGE_BODY:
        return
    in_all = {mark: sum(text.count(mark) for text in texts) for mark in b"{[:,"}
    if in_all.pop(ord(",")) <= max_items and sum(in_all.values()) <= MAX_PARTS:
        return  # even if none of them were in texts
    num_parts = num_items = 0
    for text in texts:
        parts, items = _count_parts(text)
        num_parts, num_items = num_parts + parts, num_items + items
    if num_parts > MAX_PARTS:
        message = f"A body has at most {MAX_PARTS} objects, lists and members of objects."
        raise ApiError(413, "request_too_large", message, param=param)
    if num_items > max_items:
        message = f"A body has at most {max_items} commas outside of its texts."
        raise ApiError(400, "array_above_max_length", message, param=param or _longest_list(texts[0]))


def _longest_list(data: bytes) -> str | None:
    """Returns the name of the member of a body that is the longest list; None if there is none."""
    try:
        members = _decoder(dict[str, msgspec.Raw]).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    lists = {name: len(value) for name, value in members.items() if memoryview(value)[0] == ord("[")}
    return max(lists, key=lists.__getitem__)[:64] if lists else None


def _count_parts(data: bytes) -> tuple[int, int]:
    """Returns how many objects, lists and members of objects there are, and how many commas, outside of texts."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    chars = np.frombuffer(data, np.uint8)
    outside = np.cumsum(chars == ord('"'), dtype=np.uint8) & 1 == 0  # of texts; wraps at an even number
    num_opened = np.count_nonzero(((chars | 0x20) == ord("{")) & outside)  # [, too
    num_parts = num_opened + np.count_nonzero((chars == ord(":")) & outside)
    return int(num_parts), int(np.count_nonzero((chars == ord(",")) & outside))


# The end of the work


class Lifecycle:
    """State of a server: serving, then draining, then expired, never back. Changed and awaited on the event loop.

    num_running     requests that are being answered, without those about the server itself
    """

    def __init__(self) -> None:
        self.draining = False
        self.num_running = 0
        self.expired = asyncio.Event()
        self._ends_at = 0.0

    def drain(self, limit_s: float = 0.0) -> None:
        """Refuses new work from now on; running work has `limit_s` seconds left. Safe in a signal handler."""
        self._ends_at = time.monotonic() + limit_s
        self.draining = True

    def refusal(self) -> ShuttingDownError:
        """Returns the answer to new work while the server drains."""
        return ShuttingDownError(self._ends_at - time.monotonic())

    def expire(self) -> None:
        """Stops the work that is still running."""
        self.draining = True
        self.expired.set()


async def run_while_connected(work: Awaitable[T], receive: Receive, lifecycle: Lifecycle) -> T:
    """Returns the result of `work`, and cancels it when the client disconnects or the server's time is over.

    The body must have been read. This watches the connection itself, as frameworks cancel streams in some versions
    only, and plain answers never.

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
