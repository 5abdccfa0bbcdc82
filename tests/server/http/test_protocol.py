"""Connections that say nothing, or too little, end; there are only so many; those who are served notice nothing."""

from __future__ import annotations

import http.client
import json
import re
import resource
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from bough.runtime.protocol.request import Request
from bough.server.http.answers import Unsent
from bough.server.http.protocol import _Rarely, connection_limit

from ..conftest import Running, Start
from ..fake_client import FakeClient, Script

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
LARGE = 12 << 20
"""More than a loopback connection holds."""
REQUEST = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY


def connect(server: Running) -> socket.socket:
    connection = server.stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
    connection.settimeout(5)
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Waits for the end of what comes."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def answered(connection: socket.socket, request: bytes = REQUEST) -> bool:
    """Sends a request and reads its answer."""
    connection.sendall(request)
    data = b""
    while not data.endswith(b"}") and (part := connection.recv(65536)):
        data += part
    return b"Hello" in data


def dribble(connection: socket.socket, data: bytes, seconds: float) -> Iterator[float]:
    """Sends `data` a byte at a time; yields how long the other end has put up with it."""
    started = time.monotonic()
    for index in range(len(data)):
        try:
            connection.send(data[index : index + 1])
        except OSError:
            return
        time.sleep(seconds)
        yield time.monotonic() - started


@pytest.mark.parametrize("sent", [b"", b"GET /livez HT", HEAD])
def test_headers_have_a_deadline(start: Start, sent: bytes) -> None:
    connection = connect(start(header_timeout_s=0.3))
    connection.sendall(sent)
    started = time.monotonic()
    assert is_closed(connection)
    assert 0.2 < time.monotonic() - started < 2.0


def test_a_byte_now_and_then_does_not_put_it_off(start: Start) -> None:
    connection = connect(start(header_timeout_s=0.3))
    assert 0.2 < list(dribble(connection, HEAD, 0.05))[-1] < 1.5


def test_an_answer_before_the_end_of_a_body_is_not_overtaken_by_a_reset(start: Start) -> None:
    server = start(header_timeout_s=0.5)
    for client_ends in (True, False):
        connection = connect(server)
        connection.sendall(HEAD + b"connection: close\r\ncontent-length: 209715200\r\n\r\n" + b"x" * 100_000)
        data, started = b"", time.monotonic()
        while part := connection.recv(65536):  # raises ConnectionResetError
            data += part
        assert b" 413 " in data and time.monotonic() - started < 0.4
        if client_ends:
            connection.shutdown(socket.SHUT_WR)
        else:  # and is cut off when its time is up
            assert 0.2 < list(dribble(connection, b"x" * 40, 0.05))[-1] < 1.5


def test_the_next_request_has_a_deadline_of_its_own(start: Start) -> None:
    connection = connect(start(header_timeout_s=0.5))
    for _ in range(3):
        assert answered(connection)
        time.sleep(0.7)  # it may rest in between
    connection.sendall(b"GET")
    assert is_closed(connection)


def test_an_answer_may_take_longer(start: Start) -> None:
    connection = connect(start(FakeClient(lambda _: Script(delay_s=0.5)), header_timeout_s=0.2))
    assert answered(connection)


def test_a_body_that_is_sent_after_its_answer_ends_too(start: Start) -> None:
    connection = connect(start(header_timeout_s=0.3))
    connection.sendall(b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n")
    assert b"404" in connection.recv(65536)
    assert 0.2 < list(dribble(connection, b"x" * 1000, 0.05))[-1] < 1.5


def test_connections_have_a_limit(
    start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bough.server.http.protocol.logger.filters", [_Rarely()])  # others may have been warned
    server = start(FakeClient(lambda _: Script(delay_s=1.5)), max_connections=4)
    busy = [connect(server) for _ in range(4)]
    for each in busy:
        each.sendall(REQUEST)
    assert server.wait_for(lambda: len(server.engine.open_ids) == 4)
    assert all(is_closed(connect(server)) for _ in range(5))
    assert sum("open connections are busy" in record.message for record in caplog.records) == 1
    assert all(answered(each, b"") for each in busy)
    assert answered(connect(server))  # in the place of one that rests
    for each in busy:
        each.settimeout(0.2)
    assert sum(is_closed(each) for each in busy) == 1


def test_requests_that_are_none_do_not_fill_the_log(
    start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    for _ in range(20):
        connection = connect(server)
        connection.sendall(b"no request\r\n\r\n")
        assert b" 400 " in connection.recv(65536)
    said = [record.getMessage() for record in caplog.records if "Invalid HTTP request" in record.getMessage()]
    assert len(said) <= 1
    caplog.clear()
    monkeypatch.setattr("bough.server.http.protocol.LOG_EVERY_S", 0.0)
    connection = connect(server)
    connection.sendall(b"no request\r\n\r\n")
    assert b" 400 " in connection.recv(65536)
    (line,) = [record.getMessage() for record in caplog.records]
    assert re.search(r"Invalid HTTP request received\. \((19|2\d|\d{3,}) more", line)


def test_a_client_that_ends_its_side_is_answered(start: Start) -> None:
    connection = connect(start(FakeClient(lambda _: Script(delay_s=0.2))))
    connection.sendall(REQUEST)
    connection.shutdown(socket.SHUT_WR)
    data = b""
    while part := connection.recv(65536):
        data += part
    assert data.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200") and b"Hello" in data


def test_official_readers_skip_the_interim_answer(start: Start) -> None:
    server = start(FakeClient(lambda _: Script(delay_s=0.2)))
    for _ in range(2):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
        server.stack.callback(connection.close)
        connection.request("POST", "/v1/chat/completions", BODY, {"content-type": "application/json"})
        assert connection.sock is not None
        connection.sock.shutdown(socket.SHUT_WR)
        answer = connection.getresponse()
        assert answer.status == 200 and b"Hello" in answer.read()


@pytest.mark.parametrize("stream", [False, True])
def test_one_that_is_gone_is_noticed_all_the_same(start: Start, stream: bool) -> None:
    server = start(FakeClient(lambda _: Script(["x"] * 100, delay_s=0.1)))
    body = BODY[:-1] + b', "stream": %s}' % (b"true" if stream else b"false")
    connection = connect(server)
    connection.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
    time.sleep(0.25)
    assert server.engine.open_ids
    connection.close()
    time.sleep(0.6)
    assert not server.engine.open_ids


def begin_stream(server: Running) -> socket.socket:
    """Returns the connection of a stream whose first text has come; the next takes two seconds."""
    connection, body = connect(server), BODY[:-1] + b', "stream": true}'
    connection.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
    data = b""
    while b'"content":"a"' not in data:
        data += connection.recv(65536)
    return connection


def test_one_that_leaves_a_quiet_stream_is_noticed_at_once(start: Start) -> None:
    server = start(FakeClient(lambda _: Script(["a", "b"], delay_s=2.0)))
    connection = begin_stream(server)
    assert len(server.engine.open_ids) == 1
    connection.close()
    started = time.monotonic()
    while server.engine.open_ids:
        assert time.monotonic() - started < 1.5
        time.sleep(0.01)


def test_one_that_ends_its_side_of_a_stream_gets_the_rest(start: Start) -> None:
    connection = begin_stream(start(FakeClient(lambda _: Script(["a", "b"], delay_s=2.0))))
    connection.shutdown(socket.SHUT_WR)
    data = b""
    while part := connection.recv(65536):
        data += part
    assert b'"content":"b"' in data and b"data: [DONE]" in data


def large_event_half_sent(start: Start) -> tuple[Running, socket.socket]:
    """A stream whose first event is more than the system and the server's buffer hold, and is not read."""
    server = start(FakeClient(lambda _: Script(["a" * LARGE, "b"])))
    connection = ask_for_much(server, stream=True)
    unsent: Unsent = server.server.config.app._unsent  # type: ignore[union-attr]
    held = 0

    def stands() -> bool:
        nonlocal held
        before, held = held, unsent.num_bytes
        return 0 < held == before

    assert server.wait_for(lambda: bool(server.engine.open_ids), 5.0)
    while not stands():
        time.sleep(0.2)
    return server, connection


def events_of(connection: socket.socket) -> list[bytes]:
    """Reads what is still sent, as server-sent events."""
    with connection.makefile("rb") as reader:
        while reader.readline().strip():
            pass
        body = b""
        while size := int(reader.readline(), 16):
            body += reader.read(size)
            assert reader.readline() == b"\r\n"
    return body.split(b"\n\n")


def test_nothing_is_written_into_the_middle_of_a_large_event(start: Start) -> None:
    """A client ends its side of the connection while its stream's event is sent in pieces."""
    _, connection = large_event_half_sent(start)
    connection.shutdown(socket.SHUT_WR)
    *events, done, rest = events_of(connection)
    assert (done, rest) == (b"data: [DONE]", b"")
    said = [json.loads(each.removeprefix(b"data: ")) for each in events if each != b": ping"]
    texts = [each["choices"][0]["delta"].get("content", "") for each in said]
    assert "".join(texts) == "a" * LARGE + "b"


def test_an_error_in_the_middle_of_a_large_event_is_an_event_of_its_own(start: Start) -> None:
    server, connection = large_event_half_sent(start)
    server.server.servers[0].get_loop().call_soon_threadsafe(server.lifecycle.expire)
    time.sleep(0.2)
    *_, half, error, rest = events_of(connection)
    assert half.endswith(b"aaaa") and len(half) < LARGE and rest == b""
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "shutting_down"


def test_half_a_request_is_none(start: Start) -> None:
    server = start()
    connection = connect(server)
    connection.sendall(REQUEST[:-5])
    connection.shutdown(socket.SHUT_WR)
    assert is_closed(connection)
    assert not server.engine.asked


@pytest.mark.parametrize(("files", "most"), [(1024, 960), (64, 8), (resource.RLIM_INFINITY, 1 << 20)])
def test_there_are_descriptors_for_all(monkeypatch: pytest.MonkeyPatch, files: int, most: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert connection_limit() == most


# Who does not read


def ask_for_much(server: Running, *, stream: bool) -> socket.socket:
    body = BODY[:-1] + b', "stream": %s}' % (b"true" if stream else b"false")
    connection = server.stack.enter_context(socket.socket())
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(10)
    connection.connect(("127.0.0.1", server.port))
    connection.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
    return connection


def much(_: Request) -> Script:
    return Script(["x" * 20_000] * 1000)


@pytest.mark.parametrize("stream", [False, True])
def test_who_takes_nothing_of_an_answer_is_cut_off(start: Start, stream: bool) -> None:
    server = start(FakeClient(much), send_timeout_s=0.5)
    connection = ask_for_much(server, stream=stream)
    assert server.wait_for(lambda: bool(server.server.server_state.connections), 5.0)
    began = time.monotonic()
    assert server.wait_for(lambda: not server.server.server_state.connections, 10.0)
    assert 0.4 < time.monotonic() - began < 5.0
    assert server.wait_for(lambda: not server.engine.open_ids, 2.0)
    assert is_closed(connection)


def test_who_reads_slowly_is_served_and_does_not_delay_others(start: Start) -> None:
    """Reads of ten clients, for whom less waits than the bound of all together."""
    server = start(FakeClient(lambda _: Script(["x" * 20_000] * 300)), send_timeout_s=0.5)
    slow = [ask_for_much(server, stream=True) for _ in range(10)]
    heard = [0] * len(slow)
    until = time.monotonic() + 3.0
    while time.monotonic() < until:
        for index, connection in enumerate(slow):
            heard[index] += len(connection.recv(1 << 16))
        assert server.http().get("/livez", timeout=2.0).status_code == 200
        time.sleep(0.05)
    assert all(heard) and len(server.server.server_state.connections) >= len(slow)


def test_who_takes_one_answer_after_another_is_not_cut_off(start: Start) -> None:
    """Although more waits for it than did when its first answer was complete."""
    sizes = iter((300, 600))  # times 20,000 bytes: more than the system keeps
    server = start(FakeClient(lambda _: Script(["x" * 20_000] * next(sizes))), send_timeout_s=2.0)
    connection = server.stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
    connection.settimeout(10)
    reader = connection.makefile("rb")
    connection.sendall(REQUEST)
    time.sleep(0.5)  # it is complete, and waits
    assert len(reader.read(body_length(reader))) > 300 * 20_000
    connection.sendall(REQUEST)
    length, until = body_length(reader), time.monotonic() + 2.5
    while time.monotonic() < until:
        part = reader.read1(1 << 16)
        assert part, "it was cut off"
        length -= len(part)
        time.sleep(0.02)
    assert len(reader.read(length)) == length


def body_length(reader: Any) -> int:
    head = [*iter(lambda: reader.readline().rstrip(b"\r\n"), b"")]
    return next(int(line.split(b": ")[1]) for line in head if line.lower().startswith(b"content-length"))
