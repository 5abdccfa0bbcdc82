"""HTTP answers come out whole however their bytes are split, connections are kept, and what breaks off says so."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from bough.lang.backends.connections import Address, Connections

BODY = b"one two three"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none \r\n9;note=x\r\ntwo three\r\n0\r\nX: y\r\n\r\n"
)
SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n" + BODY
CLOSED = b"HTTP/1.1 200 OK\r\n\r\n" + BODY
OLD = b"HTTP/1.0 200 OK\r\nContent-Length: 13\r\n\r\n" + BODY
EARLY = b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED
REQUEST = b"POST /x HTTP/1.1\r\nContent-Length: 2\r\n"

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Answers each request by `talk`, and counts connections and requests."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        self.num_connections = self.num_requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                assert await reader.readexactly(2) == b"{}"
                self.num_requests += 1
                await self.talk(reader, writer)
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(talk: Talk, *, silence_s: float = 5.0) -> AsyncIterator[tuple[Server, Connections]]:
    server = Server(talk)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    connections = Connections(Address("127.0.0.1", port, None), connect_s=5.0, silence_s=silence_s)
    try:
        yield server, connections
    finally:
        await connections.aclose()
        listening.close()
        await listening.wait_closed()


def saying(data: bytes, *cuts: int, close: bool = False) -> Talk:
    """Writes `data` in pieces that end at `cuts`."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for start, stop in itertools.pairwise((0, *cuts, len(data))):
            writer.write(data[start:stop])
            await writer.drain()
            if cuts:
                await asyncio.sleep(0.001)
        if close:
            writer.close()

    return talk


async def ask(connections: Connections) -> tuple[int, bytes]:
    answer = await connections.request(REQUEST, b"{}")
    body = b""
    try:
        while part := await answer.read():
            body += part
    finally:
        answer.close()
    return answer.status, body


@pytest.mark.parametrize("data", [CHUNKED, SIZED, EARLY], ids=["chunked", "sized", "early"])
def test_a_body_is_the_same_however_it_is_split(data: bytes) -> None:
    async def main() -> None:
        for cut in range(1, len(data)):
            async with serving(saying(data, cut)) as (_, connections):
                assert await ask(connections) == (200, BODY)
        async with serving(saying(data, *range(1, len(data)))) as (_, connections):
            assert await ask(connections) == (200, BODY)

    asyncio.run(main())


@pytest.mark.parametrize(("data", "kept"), [(CHUNKED, True), (SIZED, True), (EARLY, True), (OLD, False)])
def test_a_connection_is_kept_where_it_may_be(data: bytes, kept: bool) -> None:
    async def main() -> int:
        async with serving(saying(data)) as (server, connections):
            for _ in range(3):
                assert await ask(connections) == (200, BODY)
            assert server.num_requests == 3
            return server.num_connections

    assert asyncio.run(main()) == (1 if kept else 3)


def test_a_body_may_end_with_its_connection() -> None:
    async def main() -> None:
        async with serving(saying(CLOSED, close=True)) as (_, connections):
            assert await ask(connections) == (200, BODY)

    asyncio.run(main())


def test_a_kept_connection_that_the_server_closed_is_replaced() -> None:
    async def main() -> int:
        async with serving(saying(SIZED, close=True)) as (server, connections):
            for _ in range(3):
                assert await ask(connections) == (200, BODY)
                await asyncio.sleep(0.01)
            return server.num_connections

    assert asyncio.run(main()) == 3


def test_an_answer_that_is_left_closes_its_connection() -> None:
    async def main() -> int:
        async with serving(saying(CHUNKED[:-20])) as (server, connections):
            for _ in range(2):
                answer = await connections.request(REQUEST, b"{}")
                assert await answer.read()
                answer.close()
            return server.num_connections

    assert asyncio.run(main()) == 2


@pytest.mark.parametrize(
    "data", [CHUNKED[:-25], SIZED[:-3], SIZED[:20], b""], ids=["chunked", "sized", "head", "nothing"]
)
def test_an_answer_that_breaks_off_is_an_error(data: bytes) -> None:
    async def main() -> None:
        async with serving(saying(data, close=True)) as (server, connections):
            with pytest.raises(ConnectionError, match="closed the connection"):
                await ask(connections)
            assert server.num_requests == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    "data",
    [b"SSH-2.0-x\r\n\r\n", CHUNKED.replace(b"4\r\n", b"four\r\n"), SIZED.replace(b"13", b"many"), b"x" * 100_000],
    ids=["protocol", "chunk", "length", "endless"],
)
def test_what_is_no_http_is_an_error(data: bytes) -> None:
    async def main() -> None:
        async with serving(saying(data)) as (_, connections):
            with pytest.raises(ConnectionError, match="no HTTP"):
                await ask(connections)

    asyncio.run(main())


def test_silence_is_an_error() -> None:
    async def main() -> None:
        async with serving(saying(CHUNKED[:-25]), silence_s=0.05) as (_, connections):
            with pytest.raises(TimeoutError, match="nothing came"):
                await ask(connections)

    asyncio.run(main())


def test_whoever_reads_slowly_makes_the_server_wait() -> None:
    size = 32 << 20

    async def main() -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size
        async with serving(saying(head + bytes(size))) as (_, connections):
            answer = await connections.request(REQUEST, b"{}")
            await asyncio.sleep(0.05)
            most, total = 0, 0
            while part := await answer.read():
                most, total = max(most, len(part)), total + len(part)
            answer.close()
            assert total == size and most < 4 << 20

    asyncio.run(main())
