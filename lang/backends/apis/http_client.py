"""Client of an HTTP API: bounded concurrency, retries with a pause, streams that are checked for their proper end."""

from __future__ import annotations

import asyncio
import email.utils
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol, TypeVar

import httpx
import msgspec

from ....constrain.workers.decoders import json_decoder
from ....runtime.client.forks import forks
from ...diagnostics.errors import BackendError

MAX_LINE_BYTES = 4 << 20
MAX_ANSWER_BYTES = 64 << 20
MAX_ERROR_BYTES = 65536
MAX_PAUSE_S = 60.0
_RETRYABLE = frozenset({408, 409, 425, 429})
_CODES = {401: "invalid_api_key", 403: "permission_denied", 404: "not_found", 429: "rate_limit_exceeded"}
"""Error codes by status, for answers that name none themselves."""


class Reader(Protocol):
    """Takes in an answer that comes in events.

    fresh   nothing has been passed on yet, so that the request may be made again
    done    nothing of what still comes matters
    """

    fresh: bool
    done: bool

    @property
    def whole(self) -> bool:
        """The answer may end here."""

    def feed(self, data: str) -> None:
        """Takes one event. Raises BackendError: it is not one."""


Answer = TypeVar("Answer", bound=Reader)


class ApiClient:
    """Makes requests. Lives on one event loop; in a forked child on another one, with connections of its own.

    calls   requests made so far, repeated ones included
    """

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str],
        *,
        timeout_s: float,
        max_concurrency: int,
        max_retries: int,
        pause_s: float = 0.5,
    ) -> None:
        self.calls = 0
        self._base_url = base_url
        self._headers = dict(headers)
        self._timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, 10.0), pool=None)
        self._timeout_s = timeout_s
        self._max_concurrency = max_concurrency
        self._max_retries = max_retries
        self._pause_s = pause_s
        self._begin()
        forks.watch(self._after_fork)

    def _after_fork(self) -> None:
        """Lets go of the parent's connections, whose sockets are shared, and does not wait for its requests."""
        self._begin()

    def _begin(self) -> None:
        self._limit = asyncio.Semaphore(self._max_concurrency)
        self._client: httpx.AsyncClient | None = None

    async def stream(self, path: str, body: Any, make_reader: Callable[[], Answer]) -> Answer:
        """Reads an answer that comes as server-sent events.

        Raises:
            BackendError: refused, unreachable, or broken off; with `retryable` after all retries.
        """
        content = msgspec.json.encode(body)
        for attempt in range(self._max_retries + 1):
            reader = make_reader()
            pause_s: float | None = None
            try:
                async with self._limit, self._open(path, content) as response:
                    if response.status_code == httpx.codes.OK:
                        await _read(response, reader)
                        return reader
                    error = refusal(response.status_code, await ahead(response.aiter_bytes()), response.headers)
                    pause_s = _retry_after(response.headers)
            except httpx.HTTPError as broken:
                error = _broken(broken)
            except BackendError as broken:
                error = broken
            if not (error.retryable and reader.fresh):
                raise error
            await self._pause(attempt, pause_s, error)
        raise AssertionError

    async def post(self, path: str, body: Any) -> bytes:
        """The answer to a request, as a whole. Raises as `stream`."""
        content = msgspec.json.encode(body)
        for attempt in range(self._max_retries + 1):
            pause_s: float | None = None
            try:
                async with self._limit, self._open(path, content) as response:
                    if response.status_code == httpx.codes.OK:
                        return await _whole(response.aiter_bytes())
                    error = refusal(response.status_code, await ahead(response.aiter_bytes()), response.headers)
                    pause_s = _retry_after(response.headers)
            except httpx.HTTPError as broken:
                error = _broken(broken)
            if not error.retryable:
                raise error
            await self._pause(attempt, pause_s, error)
        raise AssertionError

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    def _open(self, path: str, content: bytes) -> Any:
        self.calls += 1
        if self._client is None:
            limits = httpx.Limits(max_connections=self._max_concurrency, max_keepalive_connections=64)
            self._client = httpx.AsyncClient(timeout=self._timeout, limits=limits, trust_env=False)
        headers = {**self._headers, "Content-Type": "application/json"}
        return self._client.stream("POST", self._base_url + path, content=content, headers=headers)

    async def _pause(self, attempt: int, asked_s: float | None, error: BackendError) -> None:
        """Waits before the next attempt. Raises `error` if there is none, or if it would come too late."""
        if attempt == self._max_retries:
            raise error
        if asked_s is not None and asked_s > min(MAX_PAUSE_S, self._timeout_s):
            raise error
        doubled = min(self._pause_s * 2**attempt, MAX_PAUSE_S) * random.uniform(0.75, 1.0)
        await asyncio.sleep(asked_s if asked_s is not None else doubled)


async def _read(response: httpx.Response, reader: Reader) -> None:
    async for data in sse(response.aiter_bytes()):
        reader.feed(data)
        if reader.done:
            return
    if not reader.whole:
        raise BackendError("the answer ended in the middle", code="broken_stream", retryable=True)


async def sse(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """The data of server-sent events.

    Raises:
        BackendError: too long a line, too long an answer, or no text.
    """
    rest, total, lines = b"", 0, list[bytes]()
    async for chunk in chunks:
        total += len(chunk)
        rest += chunk
        if total > MAX_ANSWER_BYTES or len(rest) > MAX_LINE_BYTES:
            raise BackendError("the answer is longer than any text can be", code="broken_stream")
        *complete, rest = rest.replace(b"\r\n", b"\n").split(b"\n")
        for line in complete:
            if line.startswith(b"data:"):
                lines.append(line[5:].removeprefix(b" "))
            elif not line and lines:
                yield _text(b"\n".join(lines))
                lines = []
    if lines:
        yield _text(b"\n".join(lines))


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BackendError("the answer is not UTF-8", code="broken_stream") from error


class _Detail(msgspec.Struct):
    message: str = ""
    code: str | int | None = None
    param: str | None = None
    type: str | None = None


class _ErrorBody(msgspec.Struct):
    error: _Detail | str


_ERROR_BODY = json_decoder(_ErrorBody)


def refusal(status: int, body: bytes, headers: Mapping[str, str]) -> BackendError:
    """Returns the error that an answer describes. The server's x-should-retry goes before what its status tells."""
    try:
        found = _ERROR_BODY.decode(body).error
    except msgspec.MsgspecError:
        found = _Detail()
    detail = _Detail(found) if isinstance(found, str) else found
    said = detail.message or body[:200].decode(errors="replace")
    named = next((code for code in (detail.code, detail.type) if isinstance(code, str) and code), None)
    code = named or _CODES.get(status) or ("server_error" if status >= 500 else "http_error")
    usual = status in _RETRYABLE or (status >= 500 and status != 501)
    return BackendError(
        f"the API answered with status {status}: {said}",
        code=code,
        param=detail.param,
        status=status,
        retryable={"true": True, "false": False}.get(headers.get("x-should-retry", ""), usual),
    )


def _broken(error: httpx.HTTPError) -> BackendError:
    reason = "nothing came in time" if isinstance(error, httpx.TimeoutException) else str(error) or type(error).__name__
    broken = BackendError(f"the API cannot be reached: {reason}", code="connection_error", retryable=True)
    broken.__cause__ = error
    return broken


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait, as a number or a date."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if seconds < float("inf") else None


async def _whole(chunks: AsyncIterator[bytes]) -> bytes:
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise BackendError("the answer is longer than any text can be", code="broken_stream")
    return bytes(body)


async def ahead(chunks: AsyncIterator[bytes]) -> bytes:
    """Reads as much of an answer as an error may have."""
    body = b""
    async for chunk in chunks:
        body += chunk
        if len(body) >= MAX_ERROR_BYTES:
            break
    return body
