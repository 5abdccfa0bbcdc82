"""Frames over a socket pair: whole, in order, truncated, oversized, garbage; and errors that travel as data."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from bough.constrain.spec import Choice, GrammarSpec, Regex, spec_chars
from bough.runtime.client import messages
from bough.runtime.client.engine_process import _refuse, tell
from bough.runtime.client.messages import (
    SHARED_CHARS,
    Abort,
    AskStats,
    Drop,
    Event,
    FrameWriter,
    FromEngine,
    Output,
    Start,
    Submit,
    ToEngine,
    Unreadable,
    read_frames,
)
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.protocol.errors import RequestError
from bough.runtime.protocol.program import Delta, Done
from bough.runtime.protocol.request import Finish, Request, RequestOutput, Usage

from ..asking import request


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_messages_arrive_whole_and_in_order(pair: tuple[socket.socket, socket.socket]) -> None:
    """Also when there are many at once, and when one is larger than what a socket takes in one go."""
    writer = FrameWriter(pair[0])
    sent: list[Any] = [Start(EngineConfig()), Submit(1, request(prompt="x" * 300_000))]
    sent += [Abort(str(index)) for index in range(1000)] + [Drop("é🦊"), AskStats(2**63)]
    for message in sent:
        writer.put(message)
    got = list(itertools.islice(read_frames(pair[1], ToEngine), len(sent)))
    assert got == sent
    writer.close()
    writer.close()


def test_closing_the_writer_sends_what_waits(pair: tuple[socket.socket, socket.socket]) -> None:
    writer = FrameWriter(pair[0])
    for index in range(500):
        writer.put(Abort(str(index)))
    writer.close()
    pair[0].shutdown(socket.SHUT_WR)
    assert len(list(read_frames(pair[1], ToEngine))) == 500


def test_a_writer_outlives_its_peer(pair: tuple[socket.socket, socket.socket]) -> None:
    writer = FrameWriter(pair[0])
    pair[1].close()
    for _ in range(100):
        writer.put(Abort("x"))
    started = time.monotonic()
    writer.close()
    assert time.monotonic() - started < 2.0


class OutOfMemory:
    """A connection whose sends find no memory."""

    def __init__(self, connection: socket.socket) -> None:
        self.shutdown = connection.shutdown

    def sendall(self, data: bytes) -> None:
        raise MemoryError


def test_a_writer_that_fails_breaks_the_link(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    writer = FrameWriter(OutOfMemory(near))  # type: ignore[arg-type]
    writer.put(Abort("1"))
    far.settimeout(5.0)
    assert far.recv(1) == b""
    writer._thread.join(5.0)  # it tells its peer first
    writer.wait_for_room()
    writer.put(Abort("2"))  # lost, and not kept
    writer.close()
    assert writer._num_bytes <= 100
    assert not writer._queue.qsize() > 1


def test_a_reader_that_stands_still_is_waited_for_once(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "ROOM_TIMEOUT_S", 0.5)
    writer = FrameWriter(pair[0])
    reader = read_frames(pair[1], ToEngine)

    def say(count: int) -> float:
        began = time.monotonic()
        for _ in range(count):
            writer.put(Drop("x" * 1_000_000))
            writer.wait_for_room()
        return time.monotonic() - began

    assert 0.4 < say(20) < 5.0
    assert len(list(itertools.islice(reader, 20))) == 20
    assert 0.4 < say(20) < 5.0  # it had gone on
    pair[1].close()
    writer.close()


def test_who_says_much_waits_until_it_is_read(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "ROOM_TIMEOUT_S", 30.0)
    writer = FrameWriter(pair[0])
    said: list[int] = []

    def speak() -> None:
        for index in range(50):
            writer.put(Drop("x" * 100_000))
            writer.wait_for_room()
            said.append(index)

    speaker = threading.Thread(target=speak)
    speaker.start()
    time.sleep(0.3)
    assert len(said) < 20  # what the socket holds, and ROOM_BYTES
    assert len(list(itertools.islice(read_frames(pair[1], ToEngine), 50))) == 50
    speaker.join(5.0)
    assert len(said) == 50
    pair[1].close()
    for _ in range(50):
        writer.put(Drop("x" * 100_000))
    began = time.monotonic()
    for _ in range(50):
        writer.wait_for_room()  # nobody reads any more
    assert time.monotonic() - began < 0.9
    writer.close()


@pytest.mark.parametrize("message", [Drop("\ud800"), AskStats(2**70)])
def test_what_cannot_be_encoded_is_refused_and_the_writer_goes_on(
    pair: tuple[socket.socket, socket.socket], message: Any
) -> None:
    writer = FrameWriter(pair[0])
    with pytest.raises(RequestError, match="cannot be sent"):
        writer.put(message)
    writer.put(Drop("fine"))
    assert next(read_frames(pair[1], ToEngine)) == Drop("fine")
    writer.close()


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"priority": 2**70}, "priority"),
        ({"namespace": "\ud800"}, "namespace"),
        ({"prompt": (1, 2**70)}, "prompt[1]"),
    ],
)
def test_what_cannot_be_sent_is_named(
    pair: tuple[socket.socket, socket.socket], fields: dict[str, Any], place: str
) -> None:
    writer = FrameWriter(pair[0])
    with pytest.raises(RequestError, match="cannot be sent") as caught:
        writer.put(Submit(1, Request(**{"id": "a", "prompt": (1,)} | fields)))
    assert caught.value.param == place
    writer.close()


@pytest.mark.parametrize(
    "last",
    [
        Event(3, Done(texts={0: "\ud800"})),
        Output(3, RequestOutput(id="a", finish=Finish(reason="stop", matched="\ud800", usage=Usage(prompt_tokens=5)))),
    ],
)
def test_an_end_that_cannot_be_sent_is_an_error(
    pair: tuple[socket.socket, socket.socket], last: Event | Output
) -> None:
    writer = FrameWriter(pair[0])
    tell(writer, last)
    told: Any = next(read_frames(pair[1], FromEngine))
    assert told.key == 3
    ended: Any = told.event if isinstance(told, Event) else told.output.finish
    assert ended.error.code == "invalid_output" and "cannot be sent" in ended.error.message
    assert isinstance(told, Event) or ended.usage.prompt_tokens == 5
    with pytest.raises(RequestError, match="cannot be sent"):  # or else the request ends, and tells of that
        tell(writer, Event(3, Delta(0, "x", "\ud800")))
    writer.close()


FRAME = msgspec.msgpack.encode(Drop("x"))


def head(length: int, number: int = 0) -> bytes:
    return length.to_bytes(4, "little") + number.to_bytes(4, "little")


def framed(message: object, number: int = 0) -> bytes:
    body = msgspec.msgpack.encode(message)
    return head(len(body), number) + body


@pytest.mark.parametrize("data", [b"", b"\x05", b"\x05\0\0", head(len(FRAME), 1) + FRAME[:-1]])
def test_a_truncated_frame_is_the_end(pair: tuple[socket.socket, socket.socket], data: bytes) -> None:
    pair[0].sendall(framed(Drop("x")) + data)
    pair[0].shutdown(socket.SHUT_WR)
    assert list(read_frames(pair[1], ToEngine)) == [Drop("x")]


@pytest.mark.parametrize(
    "data",
    [
        head(2**32 - 1),  # 4 GB: refused before it is read
        head(3) + b"\xc1\xc1\xc1",
        head(0),
        head(1) + b"\x90",
        framed({"type": "nothing"}),
        framed({"type": "drop"}),
    ],
)
def test_garbage_is_an_error(pair: tuple[socket.socket, socket.socket], data: bytes) -> None:
    pair[0].sendall(data)
    with pytest.raises(msgspec.DecodeError):
        next(read_frames(pair[1], ToEngine))


def nested(key: int, depth: int = 100_000) -> bytes:
    """A message whose third field, which nobody knows, is nested deeper than any decoder goes."""
    fields = msgspec.msgpack.encode({"type": "run", "key": key})
    body = b"\x83" + fields[1:] + msgspec.msgpack.encode("program") + b"\x91" * depth + b"\xc0"
    return head(len(body)) + body


@pytest.mark.parametrize("key", [0, 7, 200, 70_000, 2**40])
def test_what_is_nested_too_deeply_fails_alone(pair: tuple[socket.socket, socket.socket], key: int) -> None:
    """It ended the engine: who looked for the key of its stream went as deep."""
    pair[0].sendall(nested(key))
    pair[0].sendall(framed(Drop("x"), 1))
    refused: list[Unreadable] = []
    assert next(read_frames(pair[1], ToEngine, refused.append)) == Drop("x")
    assert [(each.kind, each.key) for each in refused] == [("run", key)]


def test_who_sent_what_cannot_be_read_is_told_or_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        writer = FrameWriter(ours)
        for message in (
            Unreadable("run", 7, "too deep"),
            Unreadable("", 0, "garbage"),
            Unreadable("submit", 8, "wrong"),
        ):
            _refuse(message, writer)
        writer.close()
        told = list(itertools.islice(read_frames(theirs, FromEngine), 2))
    assert [message.key for message in told] == [7, 8]
    assert "garbage" in caplog.text


@pytest.mark.parametrize("numbers", [(1,), (0, 0), (0, 2), (0, 1, 3)])
def test_a_frame_that_is_missing_or_comes_twice_is_an_error(
    pair: tuple[socket.socket, socket.socket], numbers: tuple[int, ...]
) -> None:
    pair[0].sendall(b"".join(framed(Drop("x"), number) for number in numbers))
    messages = read_frames(pair[1], ToEngine)
    assert [next(messages) for _ in numbers[:-1]] == [Drop("x")] * (len(numbers) - 1)
    with pytest.raises(msgspec.DecodeError, match=f"message {len(numbers) - 1} of the link is missing"):
        next(messages)


def test_a_peer_that_dies_with_messages_unread_is_the_end(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].sendall(b"never read")
    pair[1].close()
    assert list(read_frames(pair[0], ToEngine)) == []


def test_random_bytes_never_pass_as_messages() -> None:
    for seed in range(50):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.sendall(head(40) + bytes((seed * 37 + i * 101) % 256 for i in range(40)))
            with pytest.raises(msgspec.DecodeError):
                next(read_frames(theirs, ToEngine))


def test_the_constraint_of_several_requests_is_measured_once(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting the characters of one with many tags, for each of 64 sequences, held up the event loop for a second."""
    measured: list[object] = []

    def count(spec: GrammarSpec | None) -> int:
        measured.append(spec)
        return spec_chars(spec)

    monkeypatch.setattr(messages, "spec_chars", count)
    small, large = Regex("a"), Choice(("a", "b" * SHARED_CHARS))
    writer = FrameWriter(pair[0])
    for grammar in (small, large):
        for key in range(64):
            writer.submit(key, msgspec.structs.replace(request(), grammar=grammar))
    assert measured == [small, large]
    writer.close()
