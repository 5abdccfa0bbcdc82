"""A message is cut out of what arrives, wherever that is cut, and h11 sees nothing that takes it long."""

from __future__ import annotations

import contextlib
import itertools
import time

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bough.server.errors import ApiError
from bough.server.http.access import MAX_HEADER_BYTES, MAX_HEADERS
from bough.server.http.intake import Intake

from ..conftest import Running, Start
from .test_protocol import connect, is_closed

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
CHUNKED = [(b"transfer-encoding", b"chunked")]


def head_of(data: bytes) -> bytes:
    intake = Intake()
    intake.receive(data)
    return intake.head()


def bodies(data: bytes, cuts: list[int]) -> tuple[bytes, bytes]:
    """Returns a chunked body as h11 reads it after the intake, and what is left, when `data` arrives in pieces."""
    reader = h11.Connection(h11.SERVER)
    reader.receive_data(HEAD + b"transfer-encoding: chunked\r\n\r\n")
    reader.next_event()
    intake, body = Intake(), b""
    intake.begin_body(CHUNKED)
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, stop in itertools.pairwise(edges):
        intake.receive(data[start:stop])
        while reader.their_state is h11.SEND_BODY and (part := intake.body()):
            reader.receive_data(part)
            while (event := reader.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                body += bytes(event.data) if isinstance(event, h11.Data) else b""
    assert reader.their_state is h11.DONE
    return body, intake.rest()


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.sampled_from([b"", b" ", b";a=b", b" ;x"])), max_size=20),
    st.sampled_from([b"", b"x: y\r\n", b"x: y\r\nz: 1\r\n"]),
    st.lists(st.integers(0, 10_000), max_size=20),
)
def test_chunks_are_joined_wherever_they_are_cut(
    chunks: list[tuple[bytes, bytes]], trailers: bytes, cuts: list[int]
) -> None:
    data = b"".join(b"%X%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk, extension in chunks)
    data += b"0\r\n" + trailers + b"\r\n"
    assert bodies(data + b"GET", cuts) == (b"".join(chunk for chunk, _ in chunks), b"GET")


@pytest.mark.parametrize(
    "data",
    [
        b"x\r\n",
        b"\r\n",
        b"-1\r\n",
        b"1\nx\r\n",
        b"1;\n\r\nx\r\n",
        b"1\r\nxy\r\n",
        b"1\r\nx\n1\r\n",
        b"1;" + b"a" * 300,
        b"0" * 17 + b"1\r\nx\r\n",
        b"0\r\nx: y\n\r\n",
        b"0\r\n" + b"x: y\r\n" * 1000,
    ],
)
def test_chunks_that_are_not_by_the_book_are_refused(data: bytes) -> None:
    intake = Intake()
    intake.begin_body(CHUNKED)
    intake.receive(data)
    with pytest.raises(ApiError, match="chunk") as caught:
        list(iter(intake.body, b""))
    assert caught.value.status == 400


@pytest.mark.parametrize(("size", "most"), [(1, 4_000), (16, 10_000), (24, None), (1000, None)])
def test_chunks_may_be_small_but_not_for_ever(size: int, most: int | None) -> None:
    intake, chunk = Intake(), b"%x\r\n%b\r\n" % (size, b"x" * size)
    intake.begin_body(CHUNKED)
    num_chunks = 0
    while num_chunks < 150_000:
        intake.receive(chunk * 500)
        try:
            assert len(intake.body()) > 500 * size
        except ApiError:
            break
        num_chunks += 500
    assert num_chunks == 150_000 if most is None else most // 2 < num_chunks < most


def test_a_head_is_handed_on_when_it_is_whole() -> None:
    intake, data = Intake(), HEAD + b"content-length: 5\r\n\r\nhelloGET /"
    for byte in data[:-11]:
        intake.receive(bytes([byte]))
        assert intake.head() == b""
    intake.receive(data[-11:])
    assert intake.head() == data[:-10]
    intake.begin_body([(b"content-length", b"5")])
    assert (intake.body(), intake.body(), intake.rest()) == (b"hello", b"", b"GET /")


@pytest.mark.parametrize(
    "line",
    [b"a: b\n", b"a: b\rc: d\r\n", b"a:" + b" " * 20_000 + b"\x00\r\n", b"a: \x0b\r\n", b"a: \x7f\r\n", b"\na: b\r\n"],
)
def test_control_characters_and_bare_line_ends_are_refused(line: bytes) -> None:
    for data in (HEAD + line + b"\r\n", HEAD + line):
        with pytest.raises(ApiError, match="control character") as caught:
            head_of(data)
        assert caught.value.status == 400


@pytest.mark.parametrize("in_trailers", [False, True])
def test_what_comes_byte_by_byte_is_looked_at_once(in_trailers: bool) -> None:
    intake, size = Intake(), 4000 if in_trailers else MAX_HEADER_BYTES - 100
    if in_trailers:
        intake.begin_body(CHUNKED)
        intake.receive(b"0\r\nx: ")
        look = intake.body
    else:
        intake.receive(b"GET / HTTP/1.1\r\nx: ")
        look = intake.head
    began = time.thread_time()
    for _ in range(size):
        intake.receive(b"a")
        look()
    assert (time.thread_time() - began) / size < 60e-6
    intake.receive(b"\r\n\r\n")
    assert look().endswith(b"\r\n\r\n")


@given(st.lists(st.sampled_from([b"a: b", b"\r\n", b"\r", b"\n", b"\0", b"GET"]), max_size=8), st.data())
def test_how_a_head_is_cut_does_not_matter(parts: list[bytes], data: st.DataObject) -> None:
    def outcome(pieces: list[bytes]) -> object:
        intake = Intake()
        for piece in pieces:
            intake.receive(piece)
            try:
                head = intake.head()
            except ApiError as error:
                return error.code
            if head:
                return head
        return b""

    text = b"".join(parts)
    end = text.find(b"\r\n\r\n")
    text = text[: end + 4] if end >= 0 else text
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    pieces = [text[start:stop] for start, stop in itertools.pairwise([0, *cuts, len(text)])]
    assert outcome(pieces) == outcome([text])


def test_a_head_has_a_limit_before_its_end_is_seen() -> None:
    line = b"x: y\r\n"
    assert head_of(HEAD + line * (MAX_HEADERS - 1) + b"\r\n")
    assert head_of(HEAD + b"x: %b\r\n\r\n" % (b"y" * (MAX_HEADER_BYTES - 200))) is not None
    for more in (line * (MAX_HEADERS + 1), b"x: " + b"y" * MAX_HEADER_BYTES):
        for end in (b"", b"\r\n\r\n"):
            with pytest.raises(ApiError, match="At most") as caught:
                head_of(HEAD + more + end)
            assert caught.value.status == 413


# In the server


def exchange(server: Running, data: bytes) -> bytes:
    """Returns all that comes back before the other side ends."""
    connection = connect(server)
    connection.sendall(data)
    return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize(
    ("data", "status", "told"),
    [
        (HEAD + b"a:b\r\n" * 50_000 + b"\r\n", 413, b"At most 100 headers"),
        (HEAD + b"a: " + b"b" * 250_000, 413, b"At most 100 headers"),
        (HEAD.replace(b"\r\n", b"\n") + b"\n", 400, b"control character"),
        (HEAD + b"a:" + b" " * 31_000 + b"\x00\r\n\r\n", 400, b"control character"),
        (b"\x16\x03\x01\x02\x00\x01", 400, b"control character"),
        (HEAD + b"host: localhost\r\n\r\n", 400, b"Invalid HTTP"),
        (HEAD + b"authorization: a\r\nAuthorization: b\r\n\r\n", 400, b"`authorization`"),
        (HEAD + b"content-type: a\r\ncontent-Type: b\r\n\r\n", 400, b"`content-type`"),
        (HEAD + b"origin: a\r\norigin: a\r\n\r\n", 400, b"`origin`"),
    ],
)
def test_refusals_are_told_before_the_connection_ends(server: Running, data: bytes, status: int, told: bytes) -> None:
    answer = exchange(server, data)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert told in answer and b"connection: close" in answer.lower()


def test_bad_chunks_end_the_request(server: Running) -> None:
    head = HEAD + b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    answer = exchange(server, head + b"1\r\n{\r\nnonsense\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ") and b"chunk" in answer
    assert server.wait_for(lambda: not server.lifecycle.num_running, 2.0)


def test_a_body_in_tiny_chunks_is_read(server: Running) -> None:
    body = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}' + b" " * 2_500
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    head = HEAD + b"content-type: application/json\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    answer = exchange(server, head + chunks)
    assert answer.startswith(b"HTTP/1.1 200 ") and b"Hello" in answer


def test_bad_chunks_after_the_answer_end_the_connection(server: Running) -> None:
    connection = connect(server)
    connection.sendall(b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n")
    assert b"404" in connection.recv(65536)
    connection.sendall(b"nonsense\r\n")
    assert is_closed(connection)


def test_requests_one_behind_the_other_are_answered_in_order(server: Running) -> None:
    posted = HEAD + b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    read = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
    last = b"GET /nowhere HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    answer = exchange(server, read + posted + read + posted + last + read)
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"400", b"200", b"400", b"404"]


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 43_000,
        HEAD + b"a:b\r\n" * 50_000 + b"\r\n",
        HEAD + b"a:" + b" " * 32_000 + b"\x00\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\n1;" + b" " * 30_000 + b"\nx\r\n",
    ],
    ids=["chunks", "headers", "spaces", "extension"],
)
def test_what_strangers_send_does_not_stop_the_loop(start: Start, data: bytes) -> None:
    server = start()
    http, connections = server.http(), [connect(server) for _ in range(4)]
    for connection in connections:
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.send(data)
    started = time.monotonic()
    assert http.get("/livez").status_code == 200
    assert time.monotonic() - started < 0.5  # it is some milliseconds, and was seconds
