"""A client that goes away stops its work, and a server that ends lets work finish or says why it cannot."""

from __future__ import annotations

import gc
import json
import signal
import socket
import struct
import threading
import time
from typing import Any

import httpx
import pytest

from bough.runtime.protocol.request import Request
from bough.server.http.answers import Merged
from bough.server.http.protocol import BoundedProtocol

from ..conftest import Running, Start
from ..fake_client import FakeClient, Script

HI: Any = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"


def endless(request: Request) -> Script:
    return Script(["x"] * 10_000, delay_s=0.01)


def head(path: str, length: int) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json", f"content-length: {length}")
    return "\r\n".join((*lines, "", "")).encode()


def send(server: Running, path: str, body: dict[str, Any]) -> socket.socket:
    """A connection on which a request was sent and nothing read."""
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(head(path, len(data)) + data)
    return connection


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 4])
def test_a_closed_connection_aborts_all_choices_within_a_second(start: Start, n: int, stream: bool) -> None:
    server = start(FakeClient(endless))
    connection = send(server, CHAT, {"model": "m", "messages": HI, "n": n, "stream": stream})
    if stream:
        assert connection.recv(64)
    assert server.wait_for(lambda: len(server.engine.open_ids) == n, 5.0)
    connection.close()
    assert server.wait_for(lambda: len(server.engine.aborted) == n, 1.0)
    assert server.engine.open_ids == set()
    metrics = server.http().get("/metrics").text
    assert "\nbough_disconnects_total 1\n" in metrics


@pytest.mark.parametrize("stream", [True, False])
def test_nothing_of_one_that_has_left_waits_for_a_collection(start: Start, stream: bool) -> None:
    def kept() -> set[int]:
        return {
            id(each) for each in gc.get_objects() if type(each) is Merged or issubclass(type(each), BoundedProtocol)
        }

    server = start(FakeClient(endless))
    gc.collect()
    before = kept()  # of servers of other tests
    gc.disable()
    try:
        for _ in range(3):
            connection = send(server, CHAT, {"model": "m", "messages": HI, "n": 4, "stream": stream})
            assert server.wait_for(lambda: len(server.engine.open_ids) == 4, 5.0)
            connection.close()
            assert server.wait_for(lambda: not server.engine.open_ids, 5.0)
        assert server.wait_for(lambda: kept() <= before, 5.0)
    finally:
        gc.enable()


def test_a_connection_that_closes_before_the_first_output_aborts(start: Start) -> None:
    server = start(FakeClient(lambda _: Script(["x"], delay_s=30)))
    connection = send(server, CHAT, {"model": "m", "messages": HI, "stream": True})
    assert server.wait_for(lambda: len(server.engine.open_ids) == 1, 5.0)
    connection.close()
    assert server.wait_for(lambda: len(server.engine.aborted) == 1, 1.0)


def test_requests_whose_clients_have_left_wait_for_no_turn(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of these has a turn: only what has left lets others through."""
    monkeypatch.setattr("bough.server.http.door.ROUNDS", 1 << 40)
    server = start()
    turnstile = server.server.config.app._turnstile  # type: ignore[union-attr]
    body = {"model": "m", "messages": HI}
    connections = [send(server, CHAT, body) for _ in range(41)]
    assert server.wait_for(lambda: len(turnstile) == 40, 5.0)
    for index, connection in enumerate(connections):
        if index % 2:  # a reset; the others end as usual, which looks as if an answer was waited for
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    assert server.wait_for(lambda: len(turnstile) == 0, 2.0)
    assert server.wait_for(lambda: not server.server.server_state.tasks, 2.0)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_has_sent_another_request_and_left_is_noticed(start: Start, stream: bool) -> None:
    server = start(FakeClient(endless))
    data = json.dumps({"model": "m", "messages": HI, "stream": stream}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head(CHAT, len(data)) + data)
        assert server.wait_for(lambda: len(server.engine.open_ids) == 1, 5.0)
        time.sleep(0.1)  # the first part of the answer is there: the body's end is not waited for any more
        connection.sendall(head(CHAT, len(data)) + data)
        time.sleep(0.1)
    assert server.wait_for(lambda: len(server.engine.aborted) == 1, 1.0)
    assert server.engine.open_ids == set()


def test_requests_sent_at_once_are_all_answered_though_the_client_has_ended_its_side(start: Start) -> None:
    server = start(FakeClient(lambda _: Script(["x"] * 10, delay_s=0.02)))
    data = json.dumps({"model": "m", "messages": HI}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(3 * (head(CHAT, len(data)) + data))
        connection.shutdown(socket.SHUT_WR)
        answers = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert answers.count(b"xxxxxxxxxx") == 3


def test_connections_that_are_reset_are_nothing_to_tell_of(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """asyncio warns of writes to a connection that is lost."""
    server = start(FakeClient(lambda _: Script(["x"] * 20_000)))
    for _ in range(20):
        connection = send(server, CHAT, {"model": "m", "messages": HI, "stream": True, "n": 16})
        assert connection.recv(64)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    assert server.wait_for(lambda: not server.engine.open_ids, 10.0)
    assert not [record.message for record in caplog.records]


def test_leaving_the_stream_of_the_official_client_aborts(start: Start) -> None:
    server = start(FakeClient(endless))
    with server.openai().chat.completions.create(model="m", messages=HI, stream=True) as stream:
        assert next(iter(stream)).choices[0].delta.role == "assistant"
    assert server.wait_for(lambda: len(server.engine.aborted) == 1, 1.0)


def test_one_refused_choice_aborts_the_others(start: Start) -> None:
    def script(request: Request) -> Script:
        return Script(refuse=RuntimeError("no")) if request.id.endswith("-1") else endless(request)

    server = start(FakeClient(script))
    assert server.http().post(CHAT, json={"model": "m", "messages": HI, "n": 3}).status_code == 500
    assert server.wait_for(lambda: server.engine.open_ids == set(), 1.0)


def test_an_aborted_body_and_a_body_that_never_comes(start: Start) -> None:
    server = start(body_timeout_s=0.2)
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head(CHAT, 50) + b"{")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"request_timeout" in answer
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head(CHAT, 50) + b"{")
    assert server.http().get("/livez").status_code == 200


def test_bodies_are_bounded_with_and_without_a_length(start: Start) -> None:
    server = start(max_body_bytes=1000)
    headers = {"content-type": "application/json"}
    body = json.dumps({"model": "m", "messages": HI})
    exact = body + " " * (1000 - len(body))
    http = server.http()
    assert http.post(CHAT, content=exact, headers=headers).status_code == 200
    assert http.post(CHAT, content=exact + " ", headers=headers).status_code == 413
    chunks = (exact.encode() for _ in range(2))
    response = server.http().post(CHAT, content=chunks, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")


def test_a_signal_lets_running_answers_finish_and_refuses_new_ones(start: Start) -> None:
    server = start(FakeClient(lambda _: Script(["x"] * 20, delay_s=0.03)), drain_delay_s=3.0)
    answers: list[httpx.Response] = []
    body = {"model": "m", "messages": HI, "stream": True}
    worker = threading.Thread(target=lambda: answers.append(httpx.post(server.url + CHAT, json=body, timeout=20)))
    worker.start()
    assert server.wait_for(lambda: len(server.engine.open_ids) == 1, 5.0)
    server.server.handle_exit(signal.SIGTERM, None)
    refused = server.http().post(CHAT, json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    assert refused.headers["connection"] == "close"
    assert server.http().get("/readyz").status_code == 503
    assert server.http().get("/livez").status_code == 200
    worker.join(10)
    assert answers[0].text.endswith("data: [DONE]\n\n")
    assert answers[0].text.count('"content":"x"') == 20


@pytest.mark.parametrize("stream", [True, False])
def test_what_does_not_finish_in_time_is_told_so(start: Start, stream: bool) -> None:
    server = start(FakeClient(endless), drain_timeout_s=0.2)
    answers: list[httpx.Response] = []
    body = {"model": "m", "messages": HI, "stream": stream}
    worker = threading.Thread(target=lambda: answers.append(httpx.post(server.url + CHAT, json=body, timeout=20)))
    worker.start()
    assert server.wait_for(lambda: len(server.engine.open_ids) == 1, 5.0)
    begun = time.monotonic()
    server.server.handle_exit(signal.SIGTERM, None)
    worker.join(10)
    assert time.monotonic() - begun < 3.0
    last = answers[0].text.split("\n\n")[-2].removeprefix("data: ") if stream else answers[0].text
    assert json.loads(last)["error"]["code"] == "shutting_down"
    assert answers[0].status_code == (200 if stream else 503)
    assert server.wait_for(lambda: server.engine.open_ids == set(), 1.0)
