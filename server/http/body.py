"""Bodies of requests: received within bounds of size and time, and decoded into typed values."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.types import Receive

from ..errors import ApiError, from_decode_error
from .lifecycle import ClientClosedError

B = TypeVar("B", bound=msgspec.Struct)


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
