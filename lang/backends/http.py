"""Programs on a bough server."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import httpx
import msgspec

from ...constrain.workers.decoders import json_decoder
from ...runtime.client.forks import forks
from ...runtime.protocol.errors import RequestError
from ...runtime.protocol.program import Done, Failed, Program, ProgramEvent
from ...runtime.tools.registry import ToolCall
from ..backend import TEXT_ONLY
from ..diagnostics.errors import BackendError
from ..diagnostics.source_lines import located
from ..observe.otel import trace_headers
from .apis.http_client import MAX_ANSWER_BYTES, MAX_ERROR_BYTES, ahead
from .messages.tools import NO_TOOLS

_MAX_CONNECTIONS = 1024
_LANE_WIDTH = 8
_RETRYABLE = frozenset({408, 429, 502, 503, 504})
_RETRYABLE_CODES = frozenset({"engine_dead", "engine_overloaded", "engine_starting", "queue_timeout", "shutting_down"})
"""Errors after which a program whose stream has begun may be sent again."""
_EVENTS: msgspec.json.Decoder[ProgramEvent] = json_decoder(ProgramEvent)


class HttpBackend:
    """Posts each program to `{base_url}/v1/programs` and reads its events as they come. Safe to use from many threads.

    api_key     sent as a bearer token
    timeout_s   seconds without an event after which the server is given up
    verify      a file of certificates to trust instead of the system's

    Tools run on the server, which must have them: of `tools` nothing is sent but their names.
    Connections are kept open: close the backend. Those of an event loop are closed with that, or by `await aclose()`.
    A forked child makes its own.

    >>> backend = HttpBackend("http://127.0.0.1:8000")
    """

    modalities = TEXT_ONLY

    def __init__(
        self, base_url: str, api_key: str | None = None, *, timeout_s: float = 600.0, verify: str | None = None
    ) -> None:
        with located:
            base = server_url(base_url)
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise RequestError("an api_key has visible ASCII characters only", param="api_key")
        self._options: dict[str, Any] = {
            "base_url": base,
            "headers": {"Authorization": f"Bearer {api_key}"} if api_key else {},
            "timeout": httpx.Timeout(timeout_s, connect=min(timeout_s, 10.0), pool=None),
            "limits": httpx.Limits(max_connections=_MAX_CONNECTIONS, max_keepalive_connections=_MAX_CONNECTIONS),
            "trust_env": False,
            "verify": httpx.create_ssl_context(trust_env=False)
            if verify is None
            else ssl.create_default_context(cafile=verify),
        }
        self._begin()
        self._lent: dict[asyncio.AbstractEventLoop, AsyncGenerator[list[_Lane], None]] = {}
        self._lanes: dict[asyncio.AbstractEventLoop, list[_Lane]] = {}
        forks.watch(self._after_fork)

    def _after_fork(self) -> None:
        """Lets go of the parent's connections, whose sockets are shared: to close them might send something."""
        if self._end.detach() is not None:
            self._begin()
        for lanes in self._lanes.values():
            lanes.clear()  # or the end of the generator that has lent them would close them
        self._lent.clear()
        self._lanes.clear()

    def _begin(self) -> None:
        self._client = httpx.Client(**self._options)
        self._end = weakref.finalize(self, self._client.close)  # who forgets to close it

    def run(self, program: Program, tools: Mapping[str, ToolCall] = NO_TOOLS) -> Iterator[ProgramEvent]:
        events, client = _Events(), self._client
        try:
            with client.stream("POST", "/v1/programs", **_body(program)) as response:
                if response.status_code != httpx.codes.OK:
                    raise _refusal(response, _head(response.iter_bytes(), MAX_ERROR_BYTES))
                for part in response.iter_bytes():
                    yield from events.feed(part)
                    if client is not self._client:
                        raise BackendError(
                            "the answer had begun before this process was forked, and is its parent's: run the program "
                            "here",
                            code="broken_stream",
                        )
        except httpx.HTTPError as error:
            raise unreachable(error) from error
        yield events.last()

    async def arun(self, program: Program, tools: Mapping[str, ToolCall] = NO_TOOLS) -> AsyncIterator[ProgramEvent]:
        events = _Events()
        try:
            lane = await self._lane()
            with lane:
                async with lane.client.stream("POST", "/v1/programs", **_body(program)) as response:
                    if response.status_code != httpx.codes.OK:
                        raise _refusal(response, await ahead(response.aiter_bytes()))
                    async for part in response.aiter_bytes():
                        for event in events.feed(part):
                            yield event
        except httpx.HTTPError as error:
            raise unreachable(error) from error
        yield events.last()

    def drop(self, program_id: str) -> None:
        self._call("DELETE", f"/v1/programs/{program_id}", ignored=httpx.codes.NOT_FOUND)

    def flush_cache(self) -> bool:
        return _FLUSHED.decode(self._call("POST", "/flush_cache")).flushed

    def server_info(self) -> dict[str, Any]:
        """Returns the server's account of itself: version, model, settings, counters."""
        return msgspec.json.decode(self._call("GET", "/server_info"), type=dict[str, Any])

    def close(self) -> None:
        self._end()

    async def aclose(self) -> None:
        """Closes all, and the connections that were made on this event loop."""
        self.close()
        loop = asyncio.get_running_loop()
        self._lanes.pop(loop, None)
        if loop in self._lent:
            await self._lent.pop(loop).aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _call(self, method: str, path: str, *, ignored: int | None = None, json: object = None) -> bytes:
        """Returns the body of an answer. Raises BackendError: refused, unreachable, or far too long an answer."""
        try:
            with self._client.stream(method, path, json=json) as response:
                if response.is_error and response.status_code != ignored:
                    raise _refusal(response, _head(response.iter_bytes(), MAX_ERROR_BYTES))
                body = _head(response.iter_bytes(), MAX_ANSWER_BYTES + 1)
        except httpx.HTTPError as error:
            raise unreachable(error) from error
        if len(body) > MAX_ANSWER_BYTES:
            raise _too_long()
        return body

    async def _lane(self) -> _Lane:
        """Returns a lane that is not full. Connections belong to an event loop, and are closed with it: its last act is
        to close the generators begun there."""
        loop = asyncio.get_running_loop()
        lanes = self._lanes.get(loop)
        if lanes is None:
            for other in [known for known in self._lanes if known.is_closed()]:
                self._lanes.pop(other, None)
                self._lent.pop(other, None)
            lent = self._lent[loop] = _lend()
            lanes = self._lanes[loop] = await anext(lent)
        free = next((lane for lane in lanes if lane.num_open < _LANE_WIDTH), None)
        if free is None:
            free = _Lane(httpx.AsyncClient(**self._options))
            lanes.append(free)
        return free


@dataclass(eq=False)
class _Lane:
    """A few of an event loop's connections: httpx goes through all connections of a client at every request, and for
    each of them through all again."""

    client: httpx.AsyncClient
    num_open: int = 0

    def __enter__(self) -> None:
        self.num_open += 1

    def __exit__(self, *exception: object) -> None:
        self.num_open -= 1


async def _lend() -> AsyncGenerator[list[_Lane], None]:
    lanes: list[_Lane] = []
    try:
        yield lanes
    finally:
        for lane in lanes:
            await lane.client.aclose()


class _Events:
    """Reads server-sent events. The last one, or an error in its place, is held back until the answer is complete."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._last: ProgramEvent | BackendError | None = None

    def feed(self, part: bytes) -> list[ProgramEvent]:
        """The events that a part of the answer completes."""
        self._rest += part
        if b"\n" not in part:
            if len(self._rest) > MAX_ANSWER_BYTES:
                raise _too_long()
            return []
        *lines, self._rest = self._rest.split(b"\n")
        found: list[ProgramEvent] = []
        for line in lines:
            event = self._read(bytes(line[5:])) if line.startswith(b"data:") and self._last is None else None
            if isinstance(event, Done | Failed | BackendError):
                self._last = event
            elif event is not None:
                found.append(event)
        return found

    def _read(self, data: bytes) -> ProgramEvent | BackendError | None:
        """Reads an event, or the error that a server ends its stream with; None if it was cut off, which is the end."""
        try:
            return _EVENTS.decode(data)
        except msgspec.ValidationError as error:
            with contextlib.suppress(msgspec.MsgspecError):
                return _stream_error(_SERVER_ERROR.decode(data).error)
            raise BackendError(
                f"the server sent an event that is not one: {error}; does it speak the same version?",
                code="broken_stream",
            ) from error
        except msgspec.DecodeError:
            return None

    def last(self) -> ProgramEvent:
        if isinstance(self._last, BackendError):
            raise self._last
        if self._last is None:
            raise BackendError("the server's answer ended in the middle", code="broken_stream", retryable=True)
        return self._last


class _Flushed(msgspec.Struct):
    flushed: bool


_FLUSHED: msgspec.json.Decoder[_Flushed] = json_decoder(_Flushed)


class _ErrorDetail(msgspec.Struct):
    message: str
    code: str | int | None = None
    param: str | None = None


class _ServerError(msgspec.Struct):
    error: _ErrorDetail


_SERVER_ERROR = json_decoder(_ServerError)


def server_url(url: str) -> httpx.URL:
    """Reads a server's address; `/v1` behind it is left out. Raises RequestError: it is none."""
    try:
        base = httpx.URL(url.rstrip("/").removesuffix("/v1"))
        usable = base.scheme in ("http", "https") and bool(base.host) and (base.port is None or 0 < base.port < 1 << 16)
    except httpx.InvalidURL:
        usable = False
    if not usable:
        raise RequestError(f"base_url must be an address such as http://127.0.0.1:8000, got {url!r}", param="base_url")
    return base


def _body(program: Program) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    return {"content": msgspec.json.encode(program), "headers": {**headers, **trace_headers()}}


def _refusal(response: httpx.Response, body: bytes) -> BackendError:
    """The error that an answer describes. The server's x-should-retry goes before what its status tells."""
    status = response.status_code
    try:
        detail = _SERVER_ERROR.decode(body).error
    except msgspec.MsgspecError:
        detail = _ErrorDetail(f"the server answered with status {status}: {body[:200].decode(errors='replace')}")
    code = detail.code if isinstance(detail.code, str) else "http_error"
    message = detail.message
    if code == "unknown_tool":
        message += ": tools run on the server, so start it with the file that defines them: bough serve --tools FILE.py"
    said = response.headers.get("x-should-retry", "")
    retryable = {"true": True, "false": False}.get(said, status in _RETRYABLE)
    return BackendError(message, code=code, param=detail.param, status=status, retryable=retryable)


def _stream_error(detail: _ErrorDetail) -> BackendError:
    """The error with which a server ends a stream that has begun."""
    code = detail.code if isinstance(detail.code, str) else "broken_stream"
    return BackendError(detail.message, code=code, param=detail.param, retryable=code in _RETRYABLE_CODES)


def unreachable(error: httpx.HTTPError) -> BackendError:
    """Returns the error for a server that cannot be reached, or is no longer."""
    reason = re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
    try:
        where = f" at {str(error.request.url.copy_with(path='/', query=None)).rstrip('/')}"
    except RuntimeError:  # it has none
        where = ""
    connecting = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
    advice = ": start it with `bough serve`, or check the address" if connecting else ""
    message = f"the server{where} cannot be reached ({reason}){advice}"
    return BackendError(message, code="connection_error", retryable=True)


def _too_long() -> BackendError:
    return BackendError("the server's answer is longer than any can be", code="broken_stream")


def _head(chunks: Iterator[bytes], most: int) -> bytes:
    """Reads as much of an answer as `most` bytes, and a chunk perhaps."""
    body = bytearray()
    for chunk in chunks:
        body += chunk
        if len(body) >= most:
            break
    return bytes(body)
