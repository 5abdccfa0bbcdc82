"""The least HTTP/1.1 that a client of many requests needs: kept connections of one event loop, answers as they come."""

from __future__ import annotations

import asyncio
import ssl
from typing import NamedTuple

MAX_HEAD_BYTES = 64 << 10
_PAUSE_BYTES = 1 << 20
"""So much may wait for whoever reads an answer; then the server has to wait."""


class Address(NamedTuple):
    """Where a server is. `tls`: how it proves who it is; None: not at all."""

    host: str
    port: int
    tls: ssl.SSLContext | None


class ConnectionBrokenError(ConnectionError):
    """The connection ended before the answer did."""


class Connections:
    """Connections of the running event loop to one server, as many as there are requests at once."""

    def __init__(self, address: Address, *, connect_s: float, silence_s: float) -> None:
        self._address = address
        self._connect_s = connect_s
        self._silence_s = silence_s
        self._idle: list[_Connection] = []

    async def request(self, head: bytes, content: bytes) -> Answer:
        """Sends a request, and waits for the head of its answer. `head` is all but its last line break.

        Raises:
            OSError: nobody answers, or not in time.
        """
        message = head + b"\r\n" + content
        while self._idle:
            connection = self._idle.pop()
            if not connection.usable:
                connection.abort()
                continue
            try:
                return await self._ask(connection, message)
            except ConnectionBrokenError:
                if connection.heard:
                    raise
                # Servers close what nobody used for a while: here while the request was on its way.
        return await self._ask(await self._connect(), message)

    async def aclose(self) -> None:
        """Closes those that nobody uses."""
        while self._idle:
            self._idle.pop().abort()
        await asyncio.sleep(0)  # in which they are closed

    def keep(self, connection: _Connection) -> None:
        """An answer was read to its end."""
        self._idle.append(connection)

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        host, port, tls = self._address
        name = host if tls is not None else None
        silence_s = self._silence_s
        async with asyncio.timeout(self._connect_s):
            _, connection = await loop.create_connection(
                lambda: _Connection(loop, silence_s), host, port, ssl=tls, server_hostname=name
            )
        return connection

    async def _ask(self, connection: _Connection, message: bytes) -> Answer:
        try:
            connection.send(message)
            while True:
                status, fields = _read_head(await connection.take_until(b"\r\n\r\n"))
                if status >= 200:  # and not one that only says that there will be an answer
                    return Answer(self, connection, status, fields)
        except BaseException:
            connection.abort()
            raise


class Answer:
    """An answer whose head has come. Leave it with `close`, read or not."""

    def __init__(self, connections: Connections, connection: _Connection, status: int, fields: dict[str, str]) -> None:
        self.status = status
        self._connections = connections
        self._connection = connection
        self._keeps = fields.get("connection", "").lower() != "close"
        self._chunked = "chunked" in fields.get("transfer-encoding", "").lower()
        length = fields.get("content-length")
        if length is None and not self._chunked:
            self._keeps = False  # it ends with the connection
        self._left = None if length is None or self._chunked else _size(length, 10)
        """Bytes of the chunk, or of the whole, that are still to come; of chunks None between two."""
        self._over = self._left == 0

    async def read(self) -> bytes:
        """What has come of the body; b"" at its end.

        Raises:
            OSError: the connection broke off, or nothing came in time.
        """
        if self._over:
            return b""
        if self._chunked:
            return await self._read_chunks()
        data = await self._connection.take(self._left)
        if self._left is not None:
            if not data:
                raise ConnectionBrokenError("the server closed the connection in the middle of its answer")
            self._left -= len(data)
        self._over = self._left == 0 or not data
        return data

    def close(self) -> None:
        """Lets the connection go: kept, if nothing of the answer is left on it."""
        if self._over and self._keeps:
            self._connections.keep(self._connection)
        else:
            self._connection.abort()

    async def _read_chunks(self) -> bytes:
        """All of the chunks that has come, so that what came at once is read at once."""
        parts: list[bytes] = []
        while not parts or self._connection.buffered:
            if self._left is None:
                if parts and not self._connection.holds(b"\r\n"):
                    break
                line = await self._connection.take_until(b"\r\n")
                self._left = _size(line.partition(b";")[0].decode("latin-1"), 16) + 2  # with the line break behind it
                if self._left == 2:
                    while await self._connection.take_until(b"\r\n") != b"\r\n":
                        """A trailer, which nobody asked for."""
                    self._over = True
                    break
            data = await self._connection.take(self._left)
            if not data:
                raise ConnectionBrokenError("the server closed the connection in the middle of its answer")
            parts.append(data[: self._left - 2] if self._left > 2 else b"")
            self._left = self._left - len(data) or None
        return b"".join(parts) or (b"" if self._over else await self._read_chunks())


class _Connection(asyncio.Protocol):
    """Collects what comes in, for the one task that waits for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, silence_s: float) -> None:
        self._loop = loop
        self._silence_s = silence_s
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False
        self._ended = False
        self._error: Exception | None = None
        self.heard = False

    # For the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self.heard = True
        if len(self._buffer) > _PAUSE_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._ended = True
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._ended, self._error = True, error
        self._wake()

    # For requests

    @property
    def usable(self) -> bool:
        """For another request."""
        return not self._ended and not self._buffer

    @property
    def buffered(self) -> bool:
        return bool(self._buffer)

    def holds(self, mark: bytes) -> bool:
        return mark in self._buffer

    def send(self, message: bytes) -> None:
        assert self._transport is not None
        self.heard = False
        self._transport.write(message)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def take(self, num_bytes: int | None) -> bytes:
        """What has come, at most `num_bytes`; b"" at the end of the connection."""
        if not self._buffer and not self._ended:
            await self._more()
        data = bytes(self._buffer if num_bytes is None else self._buffer[:num_bytes])
        self._drop(len(data))
        return data

    async def take_until(self, mark: bytes) -> bytes:
        """What comes up to `mark`, and that."""
        begin = 0
        while (found := self._buffer.find(mark, begin)) < 0:
            if self._ended:
                raise ConnectionBrokenError("the server closed the connection") from self._error
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise ConnectionBrokenError("the server's answer is no HTTP")
            begin = max(0, len(self._buffer) - len(mark) + 1)
            await self._more()
        data = bytes(self._buffer[: found + len(mark)])
        self._drop(len(data))
        return data

    def _drop(self, num_bytes: int) -> None:
        del self._buffer[:num_bytes]
        if self._paused and self._transport is not None and not self._ended:
            self._paused = False
            self._transport.resume_reading()

    async def _more(self) -> None:
        self._waiter = self._loop.create_future()
        timer = self._loop.call_later(self._silence_s, self._give_up, self._waiter)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _give_up(self, waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_exception(TimeoutError(f"nothing came for {self._silence_s:g} s"))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _read_head(head: bytes) -> tuple[int, dict[str, str]]:
    """The status of an answer, and its fields by their names in lower case."""
    first, *lines = head.decode("latin-1").rstrip().split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
        raise ConnectionBrokenError("the server's answer is no HTTP")
    pairs = (line.partition(":") for line in lines)
    fields = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if version == "HTTP/1.0":
        fields.setdefault("connection", "close")
    return int(rest[:3]), fields


def _size(text: str, base: int) -> int:
    try:
        return int(text, base)
    except ValueError:
        raise ConnectionBrokenError("the server's answer is no HTTP") from None
