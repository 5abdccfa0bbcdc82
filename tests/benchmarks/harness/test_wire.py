"""The least client: connections are kept for the next request until the server closes them."""

from __future__ import annotations

import asyncio

import pytest

from bough.benchmarks.harness.wire import Wire


@pytest.mark.parametrize("says_so", [True, False])
def test_connections_are_kept_until_the_server_closes_them(says_so: bool) -> None:
    num_connections = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        num_connections += 1
        for number in range(2):
            assert b"content-length: 2" in await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(2)
            close = "Connection: close\r\n" if number and says_so else ""
            writer.write(f"HTTP/1.1 200 OK\r\n{close}content-length: 2\r\n\r\n[]".encode())
        await writer.drain()
        writer.close()

    async def main() -> None:
        async with (
            await asyncio.start_server(answer, "127.0.0.1", 0) as server,
            Wire(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as wire,
        ):
            for _ in range(4):
                found = await wire.ask("POST", "/x", b"{}")
                assert (found.status, await found.read()) == (200, b"[]")
                await asyncio.sleep(0.1)  # the end of a connection that nobody uses is heard

    asyncio.run(main())
    assert num_connections == 2
