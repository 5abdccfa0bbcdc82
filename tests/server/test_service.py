"""Work beside the event loop: keys take turns at it, and what looks at the server itself never waits for it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from bough.runtime.protocol.counters import EngineStats
from bough.runtime.protocol.errors import BoughError, EngineStoppedError, OverloadedError
from bough.runtime.protocol.request import Request, RequestOutput
from bough.server.http import connection as connection_module
from bough.server.http.connection import LARGE_BODY, MAX_PARTS
from bough.server.http.keys import parse_keys
from bough.server.openai import replies

from ..support.fakes import refuse_threads
from .conftest import Running, Start
from .fake_client import ByteTokenizer, FakeClient, Script

KEYS = parse_keys(["flood flood-key-0123456", "quiet quiet-key-0123456", "ops ops-key-012345678 admin"])
HI: Any = [{"role": "user", "content": "hi"}]


class SlowTokenizer(ByteTokenizer):
    """Takes a text that begins with "slow" only once it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.encoded: list[str] = []

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        if text.startswith("slow"):
            self.encoded.append(text[:40])
            assert self.gate.wait(20.0)
        return super().encode(text)

    encode_prompt = encode


def post(server: Running, key: str, path: str, body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as http:
        return http.post(path, json=body, headers=headers)


@pytest.mark.parametrize("size", [10, LARGE_BODY])
def test_slow_work_of_one_key_delays_no_other_and_nothing_that_looks_at_the_server(start: Start, size: int) -> None:
    tokenizer = SlowTokenizer()
    server = start(FakeClient(tokenizer=tokenizer), keys=KEYS)
    with ThreadPoolExecutor(70) as pool:
        slow = [
            pool.submit(post, server, "flood-key-0123456", "/tokenize", {"prompt": f"slow {number} " + "x" * size})
            for number in range(64)
        ]
        assert server.wait_for(lambda: bool(tokenizer.encoded), 10.0)
        time.sleep(0.2)  # in which the others arrive
        for path in ("/livez", "/readyz", "/metrics"):
            headers = {"authorization": "Bearer ops-key-012345678"}
            assert server.http(headers=headers, timeout=3.0).get(path).status_code == 200
        body = {"model": "m", "messages": HI}
        assert post(server, "quiet-key-0123456", "/v1/chat/completions", body).status_code == 200
        quiet = pool.submit(post, server, "quiet-key-0123456", "/tokenize", {"prompt": "slow quiet " + "x" * size})
        # A thread is left for it, whatever all the others do.
        assert server.wait_for(lambda: any(text.startswith("slow quiet") for text in tokenizer.encoded), 10.0)
        assert len(tokenizer.encoded) <= 3
        tokenizer.gate.set()
        assert quiet.result().json()["count"] == len("slow quiet ") + size
        assert {future.result().status_code for future in slow} == {200}


def test_what_waits_is_dropped_when_its_client_leaves(start: Start) -> None:
    tokenizer = SlowTokenizer()
    server = start(FakeClient(tokenizer=tokenizer))
    data = json.dumps({"prompt": "slow " + "x" * LARGE_BODY}).encode()
    head = (
        f"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
    )
    clients = []
    for _ in range(20):
        client = socket.create_connection(("127.0.0.1", server.port))
        client.sendall(f"{head}\r\n\r\n".encode() + data)
        clients.append(client)
    assert server.wait_for(lambda: bool(tokenizer.encoded), 10.0)
    for client in clients:
        client.close()
    assert server.wait_for(lambda: server.lifecycle.num_running == 0, 10.0)
    tokenizer.gate.set()
    assert post(server, "none", "/tokenize", {"prompt": "slow " + "y" * LARGE_BODY}).status_code == 200
    assert len(tokenizer.encoded) <= 3


def test_what_waits_is_bounded(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bough.server.service.MAX_WAITING", 4)
    tokenizer = SlowTokenizer()
    server = start(FakeClient(tokenizer=tokenizer), keys=KEYS)
    with ThreadPoolExecutor(20) as pool:
        body = {"prompt": "slow " + "x" * LARGE_BODY}
        futures = [pool.submit(post, server, "flood-key-0123456", "/tokenize", body) for _ in range(12)]
        assert server.wait_for(lambda: sum(future.done() for future in futures) >= 8, 10.0)
        refused = [future.result() for future in futures if future.done()]
        quiet = pool.submit(post, server, "quiet-key-0123456", "/tokenize", body)
        time.sleep(0.1)
        tokenizer.gate.set()
        assert quiet.result().status_code == 200
    assert {answer.status_code for answer in refused} == {503}
    assert {answer.json()["error"]["code"] for answer in refused} == {"engine_overloaded"}
    assert all("retry-after" in answer.headers for answer in refused)


@pytest.mark.parametrize(
    ("method", "path", "size"),
    [("POST", "/tokenize", 10), ("POST", "/tokenize", LARGE_BODY), ("GET", "/metrics", 0), ("POST", "/flush_cache", 0)],
)
def test_without_a_thread_a_request_is_refused_for_now(
    start: Start, monkeypatch: pytest.MonkeyPatch, method: str, path: str, size: int
) -> None:
    http = start().http()
    allow = refuse_threads(monkeypatch, "bough-requests", "bough-large-requests", "bough-stats", "asyncio")
    body = {"prompt": "x" * size} if size else None
    refused = http.request(method, path, json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_overloaded")
    assert int(refused.headers["retry-after"]) >= 1
    allow()
    assert http.request(method, path, json=body).status_code == 200


def test_the_engine_is_asked_once_for_all_who_want_its_counters(start: Start) -> None:
    gate, num_asked = threading.Event(), 0

    class Slow(FakeClient):
        """Answers when it is let."""

        def stats(self) -> EngineStats:
            nonlocal num_asked
            num_asked += 1
            assert gate.wait(20.0)
            return super().stats()

    server = start(Slow())
    with ThreadPoolExecutor(20) as pool:
        answers = [pool.submit(server.http().get, "/metrics") for _ in range(10)]
        assert server.wait_for(lambda: num_asked == 1)
        time.sleep(0.2)
        assert server.http().get("/livez").status_code == 200
        gate.set()
        assert {answer.result().status_code for answer in answers} == {200}
    assert num_asked == 1


# Streams whose requests wait


class Queued(FakeClient):
    """Lets each request wait for the gate, and then refuses it if it was given an error."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.error = error

    async def astream(self, request: Request, **more: Any) -> AsyncIterator[RequestOutput]:
        while not self.gate.is_set():
            await asyncio.sleep(0.01)
        if self.error is not None:
            raise self.error
        async for output in super().astream(request, **more):
            yield output


WAITING = [
    ("/v1/chat/completions", {"model": "m", "messages": HI, "stream": True}),
    ("/v1/completions", {"model": "m", "prompt": "x", "stream": True}),
]


@pytest.mark.parametrize("error", [None, OverloadedError("full"), EngineStoppedError("gone")])
@pytest.mark.parametrize(("path", "body"), WAITING)
def test_a_stream_is_kept_open_while_its_request_waits(
    start: Start, path: str, body: Any, error: BoughError | None
) -> None:
    engine = Queued(error)
    server = start(engine, ping_interval_s=0.1)
    with server.http().stream("POST", path, json=body) as answer:
        assert answer.status_code == 200
        lines = list[str]()
        for line in filter(None, answer.iter_lines()):
            lines.append(line)
            if line == ": ping":
                engine.gate.set()
    assert ": ping" in lines
    last = lines[-1].removeprefix("data: ")
    assert last == "[DONE]" if error is None else json.loads(last)["error"]["code"] == error.code


@pytest.mark.parametrize(("path", "body"), WAITING)
def test_a_refusal_that_comes_soon_is_a_plain_error(start: Start, path: str, body: Any) -> None:
    engine = Queued(OverloadedError("full"))
    engine.gate.set()
    answer = start(engine, ping_interval_s=10.0).http().post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_overloaded")
    late = Queued(OverloadedError("full"))
    threading.Timer(0.5, late.gate.set).start()
    server = start(late, ping_interval_s=0.1)
    assert server.http().post(path, json={**body, "stream": False}).status_code == 503


# Bodies


def lists(number: int, *, text: str = "") -> bytes:
    body = {"model": "m", "messages": HI, "x": [[]] * number, "text": text}
    return json.dumps(body, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (lists(MAX_PARTS - 10), 200),
        (lists(MAX_PARTS + 1), 413),
        (lists(1, text='[{"a":1},' * 50_000), 200),
        (lists(1, text='\\"[[[' * 50_000 + "\\"), 200),
        (lists(MAX_PARTS + 1, text='"\\'), 413),
        (lists(1, text="é\u2028\U0001f98a" * 50_000), 200),
    ],
)
def test_the_parts_of_a_large_body_are_counted_outside_its_texts(server: Running, data: bytes, status: int) -> None:
    headers = {"content-type": "application/json"}
    answer = server.http().post("/v1/chat/completions", content=data, headers=headers)
    assert answer.status_code == status
    if status == 413:
        assert answer.json()["error"]["code"] == "request_too_large"


@pytest.mark.parametrize("piece", ["[],", '{"a":1},', "1,", '"",', '"\\"",'])
def test_the_count_of_parts_is_that_of_the_decoded_body(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "MAX_PARTS", 1 << 30)
    data = ("[" + piece * 30_000 + "1]").encode()
    assert len(data) > LARGE_BODY or piece == "1,"
    data += b" " * LARGE_BODY
    connection_module.check_parts(data, max_items=30_000)
    with pytest.raises(Exception, match="at most"):
        connection_module.check_parts(data.replace(b"1]", b"1,1]"), max_items=30_000)


@pytest.mark.parametrize(
    ("data", "param"),
    [
        (b'{"model":"m","text":"%s","stop":["ab"%s],"x":[1]}' % (b"," * 600_000, b',"ab"' * 140_000), "stop"),
        (b'{"x":{"y":[1%s]}}' % (b",1" * 140_000), None),
        (b'{"x":[1%s' % (b",1" * 140_000), None),
    ],
)
def test_too_long_a_list_is_named(server: Running, data: bytes, param: str | None) -> None:
    headers = {"content-type": "application/json"}
    answer = server.http().post("/v1/chat/completions", content=data, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "array_above_max_length")
    assert answer.json()["error"]["param"] == param


# Answers


def test_a_whole_answer_has_a_bound_of_log_probabilities(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "MAX_KEPT_LOGPROBS", 60)
    server = start(FakeClient(lambda _: Script(["abcdefgh"] * 4)))
    body = {"model": "m", "messages": HI, "logprobs": True, "top_logprobs": 2}
    answer = server.http().post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "result_too_long")
    streamed = server.http().post("/v1/chat/completions", json={**body, "stream": True}).text
    assert streamed.count('"top_logprobs"') == 32
    assert streamed.endswith("data: [DONE]\n\n")
    assert server.http().post("/v1/chat/completions", json={**body, "top_logprobs": 0}).status_code == 200


def test_the_lag_of_the_event_loop_is_measured(start: Start) -> None:
    def block(_: Any) -> Script:
        time.sleep(0.3)  # on the event loop
        return Script()

    server = start(FakeClient(block))
    assert server.http().post("/v1/chat/completions", json={"model": "m", "messages": HI}).status_code == 200
    counts: dict[str, int] = {}
    for line in server.http().get("/metrics").text.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("bough_event_loop_lag_seconds_bucket"):
            counts[name.partition('le="')[2].rstrip('"}')] = int(value)
    assert counts["+Inf"] > counts["0.25"]
