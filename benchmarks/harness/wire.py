"""Cheap HTTP client: many concurrent requests from one thread, so that a load generator takes little of the processor
time that the server needs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ...runtime.protocol.errors import EngineError

_OK = 200


class Connection(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class HttpAnswer:
    """An answer whose head has come. `read` or `parts` takes the rest, once; `leave` hangs up instead.

    sent_s, head_s  times of the monotonic clock: the request was sent, the head of its answer had come
    """

    def __init__(self, wire: Wire, connection: Connection, sent_s: float, head: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split(" ", 2)[1])
        pairs = (line.partition(":") for line in lines[1:] if line)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self.sent_s, self.head_s = sent_s, time.monotonic()
        self._wire = wire
        self._connection = connection

    async def read(self) -> bytes:
        """Returns the whole body."""
        return b"".join([part async for part in self.parts()])

    async def parts(self) -> AsyncIterator[bytes]:
        """Yields the body as it comes: a stream's events one by one, as a rule. Leaving it early hangs up.

        Raises:
            asyncio.IncompleteReadError: the connection ended before the answer did.
        """
        reader, over = self._connection.reader, False
        try:
            if self.headers.get("transfer-encoding") == "chunked":
                while size := int((await reader.readuntil(b"\r\n"))[:-2], 16):
                    yield (await reader.readexactly(size + 2))[:-2]
                await reader.readexactly(2)
            elif length := int(self.headers.get("content-length", "0")):
                yield await reader.readexactly(length)
            over = self.headers.get("connection") != "close"
        finally:
            if over:
                self._wire.keep(self._connection)
            else:
                self.leave()

    def leave(self) -> None:
        self._connection.writer.transport.abort()


class Wire(contextlib.AbstractAsyncContextManager["Wire"]):
    """Connections to one server, each kept for the next request. Use as an async context manager, on one event loop.

    `buffer` is the size of the sockets' receive buffers, None: as the system has it.
    """

    def __init__(self, url: str, *, buffer: int | None = None) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None, f"an address with a port is needed, got {url}"
        self._address = (parts.hostname, parts.port)
        self._buffer = buffer
        self._idle: list[Connection] = []

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> HttpAnswer:
        """Sends a request and waits for the head of its answer. Cancelling it hangs up.

        Raises:
            OSError, asyncio.IncompleteReadError: the connection failed.
        """
        connection = await self._connection()
        try:
            sent_s = time.monotonic()
            connection.writer.write(_request(method, path, body, headers or {}))
            return HttpAnswer(self, connection, sent_s, await connection.reader.readuntil(b"\r\n\r\n"))
        except BaseException:
            connection.writer.transport.abort()
            raise

    async def post(self, path: str, body: bytes) -> Any:
        """The JSON that a request of JSON is answered with. Raises EngineError: it is an error, as the API tells
        one."""
        answer = await self.ask("POST", path, body)
        found = json.loads(await answer.read())
        if answer.status != _OK:
            raise EngineError(found["error"]["message"], code=found["error"]["code"])
        return found

    def keep(self, connection: Connection) -> None:
        """Takes back a connection whose answer is complete."""
        self._idle.append(connection)

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not (connection.reader.at_eof() or connection.writer.is_closing()):
                return connection
            connection.writer.transport.abort()
        plug = socket.socket()
        plug.setblocking(False)
        try:
            if self._buffer is not None:
                plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._buffer)
            await asyncio.get_running_loop().sock_connect(plug, self._address)
            limit = 2 * self._buffer if self._buffer is not None else 1 << 20
            return Connection(*await asyncio.open_connection(sock=plug, limit=limit))
        except BaseException:
            plug.close()
            raise

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hangs up all connections that are not in use."""
        for connection in self._idle:
            connection.writer.transport.abort()
        self._idle.clear()


def _request(method: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", *(f"{name}: {value}" for name, value in headers.items())]
    if body:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join((*lines, "", "")).encode() + body
