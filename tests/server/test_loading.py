"""While the model loads the process is alive, takes no requests, and says both; no client is lost when it goes on."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from bough.server.config import ServerConfig
from bough.server.loading import CLOSE_TIMEOUT_S, MAX_AT_ONCE, LoadingServer
from bough.server.serve import bind, serve

from .fake_client import FakeClient


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with bind("127.0.0.1", 0) as listener:
        yield listener


def url_of(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("path", ["/livez", "/livez?x=1"])
def test_the_process_is_alive(listener: socket.socket, path: str) -> None:
    with LoadingServer(listener):
        answer = httpx.get(url_of(listener) + path)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
        assert httpx.head(url_of(listener) + path).status_code == 200


@pytest.mark.parametrize(("method", "path"), [("GET", "/readyz"), ("GET", "/health"), ("POST", "/v1/completions")])
def test_it_takes_no_requests_yet(listener: socket.socket, method: str, path: str) -> None:
    with LoadingServer(listener):
        body = b"x" * (4 << 20) if method == "POST" else b""
        answer = httpx.request(method, url_of(listener) + path, content=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_starting")
        assert int(answer.headers["retry-after"]) >= 1


def test_each_client_is_told_in_its_own_form(listener: socket.socket) -> None:
    with LoadingServer(listener):
        answer = httpx.post(url_of(listener) + "/v1/messages?beta=true", json={})
        assert (answer.status_code, answer.json()["type"]) == (503, "error")
        assert answer.json()["error"]["type"] == "overloaded_error"


def test_clients_that_say_nothing_or_no_request_do_not_matter(listener: socket.socket) -> None:
    address = listener.getsockname()
    loading = LoadingServer(listener)
    silent = [socket.create_connection(address) for _ in range(MAX_AT_ONCE - 20)]
    for said in (b"\r\n\r\n", b"\x00" * 9000, b"GET"):
        with socket.create_connection(address) as odd:
            odd.sendall(said)
    assert httpx.get(f"{url_of(listener)}/livez").status_code == 200
    began = time.monotonic()
    loading.close()
    assert time.monotonic() - began < CLOSE_TIMEOUT_S + 2.0
    for connection in silent:
        connection.settimeout(5.0)
        assert connection.recv(1) == b""
        connection.close()


def test_who_comes_in_time_is_left_to_the_server_that_follows(listener: socket.socket) -> None:
    LoadingServer(listener).close()
    with socket.create_connection(listener.getsockname()):
        listener.settimeout(5.0)
        listener.accept()[0].close()


def test_a_server_answers_from_its_first_moment_on() -> None:
    gate, told = threading.Event(), list[str]()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    client = FakeClient()

    def load() -> FakeClient:
        assert gate.wait(30.0)
        return client

    config = ServerConfig(port=port, request_log=False)
    thread = threading.Thread(target=serve, args=(config, load, told.append))
    thread.start()
    url = f"http://127.0.0.1:{port}"
    codes = set()
    with httpx.Client(base_url=url, transport=httpx.HTTPTransport(retries=10)) as http:
        assert http.get("/livez").status_code == 200
        assert http.get("/readyz").json()["error"]["code"] == "engine_starting"
        gate.set()
        while not told or http.get("/readyz").status_code != 200:
            codes.add(http.get("/livez").status_code)
    client.alive = False  # which ends it
    thread.join(20.0)
    assert not thread.is_alive() and codes <= {200}
