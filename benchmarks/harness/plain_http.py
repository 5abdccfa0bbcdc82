"""The least client that posts JSON over kept connections: what it costs is no excuse for those who use it."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _IdleTooLongError(ConnectionError):
    """The connection was closed before anything was answered."""


class PlainClient:
    """Posts to one server. Used on one event loop; as many connections as there are requests at once."""

    def __init__(self, url: str) -> None:
        split = urlsplit(url)
        assert split.hostname is not None and split.port is not None
        self._host, self._port = split.hostname, split.port
        self._idle: list[Connection] = []

    async def post(self, path: str, content: bytes) -> tuple[int, Any]:
        """The status and the JSON value of the answer. Raises OSError: the server has gone."""
        while self._idle:
            connection = self._idle.pop()
            try:
                return await self._post(connection, path, content)
            except _IdleTooLongError:
                continue  # servers close what nobody used for a while
        return await self._post(await asyncio.open_connection(self._host, self._port), path, content)

    async def _post(self, connection: Connection, path: str, content: bytes) -> tuple[int, Any]:
        reader, writer = connection
        kept = False
        try:
            head = f"POST {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
            try:
                head_bytes = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionResetError) as error:
                raise _IdleTooLongError("the server closed the connection") from error
            status, headers = read_head(head_bytes)
            body = await reader.readexactly(int(headers["content-length"]))
            kept = headers.get("connection") != "close"
        except asyncio.IncompleteReadError as error:
            raise ConnectionError("the server closed the connection") from error
        finally:
            if kept:
                self._idle.append((reader, writer))
            else:
                writer.close()
        return status, json.loads(body)

    async def aclose(self) -> None:
        while self._idle:
            _, writer = self._idle.pop()
            writer.close()
            await writer.wait_closed()


def read_head(head: bytes) -> tuple[int, dict[str, str]]:
    """The status of an answer, and its headers by their names in lower case."""
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}
