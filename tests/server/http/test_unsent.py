"""Large answers that nobody takes: bounded in all, shared between keys, refused before their status is sent."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest
from starlette.types import Message

from bough.runtime.protocol.program import Done
from bough.server.errors import ApiError
from bough.server.http.answers import PIECE_BYTES, Pieces, Unsent
from bough.server.http.keys import parse_keys

from ..conftest import Running, Start
from ..fake_client import FakeClient


def test_a_key_may_have_as_much_as_is_left() -> None:
    unsent = Unsent(120)
    unsent.hold("a", 60)
    with pytest.raises(ApiError, match="waiting to be read"):
        unsent.hold("a", 1)
    unsent.hold("b", 20)
    unsent.hold("b", 10)  # 30 of 30 that are left then
    with pytest.raises(ApiError) as caught:
        unsent.hold("b", 5)
    assert (caught.value.status, caught.value.code) == (503, "engine_overloaded")
    unsent.hold("c", 15)
    unsent.release("a", 60)
    unsent.hold("b", 10)
    assert unsent.num_bytes == 55


class Taken:
    """A connection that takes what it is sent, and how much was held when it came."""

    def __init__(self, unsent: Unsent) -> None:
        self.unsent = unsent
        self.messages: list[Message] = []
        self.held: list[int] = []

    async def send(self, message: Message) -> None:
        self.messages.append(message)
        self.held.append(self.unsent.num_bytes)


def start_of(length: int) -> Message:
    return {"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(length).encode())]}


@pytest.mark.parametrize("size", [0, 5, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
def test_an_answer_arrives_as_it_was_in_pieces_that_are_counted(size: int) -> None:
    unsent = Unsent()
    taken, body = Taken(unsent), bytes(range(256)) * (size // 256) + b"x" * (size % 256)

    async def send() -> None:
        pieces = Pieces(unsent, taken.send, {})
        await pieces.send(start_of(size))
        await pieces.send({"type": "http.response.body", "body": body})
        assert unsent.num_bytes == 0
        pieces.close()

    asyncio.run(send())
    parts = taken.messages[1:]
    assert b"".join(part["body"] for part in parts) == body
    assert [part.get("more_body", False) for part in parts] == [True] * (len(parts) - 1) + [False]
    assert taken.held[0] == (size if size > PIECE_BYTES else 0)
    assert all(len(part["body"]) <= PIECE_BYTES for part in parts)


def test_what_is_never_sent_is_forgotten_and_a_part_of_a_stream_is_counted() -> None:
    unsent = Unsent()

    async def stuck(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def send() -> None:
        pieces = Pieces(unsent, stuck, {})
        await pieces.send({"type": "http.response.start", "status": 200, "headers": []})
        part = {"type": "http.response.body", "body": b"x" * 10 * PIECE_BYTES, "more_body": True}
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pieces.send(part), 0.02)
        assert unsent.num_bytes == 10 * PIECE_BYTES
        pieces.close()

    asyncio.run(send())
    assert unsent.num_bytes == 0


def ask(server: Running, key: str, path: str, body: dict[str, Any]) -> socket.socket:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\ncontent-type: application/json"
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # or the system takes most of the answer for it
    connection.connect(("127.0.0.1", server.port))
    connection.sendall(f"{head}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
    connection.settimeout(10)
    return connection


def test_readers_of_one_key_leave_room_for_those_of_another(start: Start) -> None:
    client = FakeClient(play=lambda _: iter([Done()]))
    server = start(client, keys=parse_keys(["a key-a-0123456789 admin", "b key-b-0123456789"]), max_body_bytes=1 << 25)
    unsent: Unsent = server.server.config.app._unsent  # type: ignore[union-attr]
    unsent.max_bytes = 40_100_000
    ops = [{"type": "assign", "branch": 0, "name": "x", "parts": ["1"]}]
    made = {"name": "f", "ops": ops, "result": {"type": "constant", "json": f'"{"y" * 20_000_000}"'}}
    admin = server.http(headers={"authorization": "Bearer key-a-0123456789"})
    admin.put("/v1/programs/f", json=made).raise_for_status()
    with ask(server, "key-a-0123456789", "/v1/programs/f", {}) as waiting:
        assert waiting.recv(12) == b"HTTP/1.1 200"
        refused = admin.post("/v1/programs/f", json={})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_overloaded")
        assert refused.headers["retry-after"] == "1"
        other = server.http(headers={"authorization": "Bearer key-b-0123456789"})
        assert len(other.post("/v1/programs/f", json={}).content) > 20_000_000
    assert server.wait_for(lambda: unsent.num_bytes == 0, 5.0)
    assert len(admin.post("/v1/programs/f", json={}).content) > 20_000_000
