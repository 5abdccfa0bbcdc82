"""The HTTP backend against a small real server on this machine."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest

from bough.lang.api import function, gen
from bough.lang.backends import http as http_module
from bough.lang.backends.http import HttpBackend
from bough.lang.backends.mock import MockBackend
from bough.lang.diagnostics.errors import BackendError, ProgramError
from bough.runtime.protocol.errors import RequestError
from bough.runtime.protocol.program import Delta, Done, Program, Value

from ..fakes import value


class Handler(BaseHTTPRequestHandler):
    """Answers by the server's `answer(handler, body)`."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.server.calls.append(("POST", self.path, self.headers.get("Authorization")))
        self.server.answer(self, body)

    def do_DELETE(self) -> None:
        self.server.calls.append(("DELETE", self.path, self.headers.get("Authorization")))
        self.send(404 if "unknown" in self.path else 200, b"{}")

    def send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def begin(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def event(self, event: object) -> None:
        self.chunk(b"data: " + msgspec.json.encode(event) + b"\n\n")

    def log_message(self, *arguments: object) -> None:
        """Silent."""


class Server(ThreadingHTTPServer):
    """A server whose answers the test decides."""

    daemon_threads = True

    def __init__(self, answer: Callable[[Handler, bytes], None]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.calls: list[tuple[str, str, str | None]] = []
        self.left = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """Silent: some tests break connections."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[Handler, bytes], None]], Server]]:
    servers: list[Server] = []

    def start(answer: Callable[[Handler, bytes], None]) -> Server:
        server = Server(answer)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def mocked(mock: MockBackend) -> Callable[[Handler, bytes], None]:
    """Runs programs on a mock."""

    def answer(handler: Handler, body: bytes) -> None:
        handler.begin()
        handler.chunk(b": keep-alive\n\n")
        for event in mock.run(msgspec.json.decode(body, type=Program)):
            handler.event(event)
        handler.chunk(b"data: [DONE]\n\n")
        handler.chunk(b"")

    return answer


@function
def two(s):
    s += "Say " + gen("x", stop=["."], schema=None)
    s += s["x"] + gen("y", dtype=int)


PROGRAM = Program(id="p", ops=())


def test_a_program_with_reads_runs_over_http(serve):
    mock = MockBackend({"x": "grüße ☃", "y": "42"})
    server = serve(mocked(mock))
    with HttpBackend(server.url + "/", api_key="secret") as backend:
        state = two.run(backend=backend)
        assert (state["x"], state["y"]) == ("grüße ☃", 42)
        assert state.text() == "Say grüße ☃grüße ☃42"
    assert [program.resume for program in mock.requests] == [False, True]
    assert server.calls == [("POST", "/v1/programs", "Bearer secret")] * 2


class Person(msgspec.Struct):
    name: str
    age: int
    town: str


def test_typed_values_are_streamed_over_http(serve):
    seen = [threading.Event(), threading.Event()]
    pieces = ['{"name": "Ann Lee", "a', 'ge": 41, "town": "Por', 'to"}']

    def answer(handler: Handler, body: bytes) -> None:
        handler.begin()
        for piece, event in zip(pieces, [*seen, threading.Event()], strict=True):
            handler.event(Delta(0, "gen_0", piece))
            if event in seen:
                assert event.wait(10)
        handler.event(value(0, "gen_0", "".join(pieces)))
        handler.event(Done())
        handler.chunk(b"data: [DONE]\n\n")
        handler.chunk(b"")

    @function
    async def program(s):
        s += "A person: "
        people = []
        async for person in s.stream(Person):
            people.append(person)
            seen[min(len(people), 2) - 1].set()
        return people

    async def main() -> list[Any]:
        backend = HttpBackend(serve(answer).url)
        state = await program.arun(backend=backend)
        await backend.aclose()
        return state.ret_value

    people = asyncio.run(main())
    parts = ["Person(name='Ann Lee', ...)", "Person(name='Ann Lee', age=41, ...)"]
    assert [repr(person) for person in people[:-1]] == parts
    assert people[-1] == Person("Ann Lee", 41, "Porto")


def test_the_same_on_an_event_loop(serve):
    server = serve(mocked(MockBackend({"x": "one", "y": "2"})))

    async def main() -> list[object]:
        backend = HttpBackend(server.url)
        states = await asyncio.gather(*(two.arun(backend=backend) for _ in range(10)))
        await backend.aclose()
        return [(state["x"], state["y"]) for state in states]

    assert asyncio.run(main()) == [("one", 2)] * 10


def test_batches_share_connections(serve):
    connections = set()
    inner = mocked(MockBackend())

    def answer(handler: Handler, body: bytes) -> None:
        connections.add(handler.client_address)
        inner(handler, body)

    server = serve(answer)
    with HttpBackend(server.url) as backend:
        states = function(lambda s, i: s.__iadd__(f"{i}" + gen("x"))).run_batch(
            [(i,) for i in range(30)], backend=backend, num_threads=3
        )
        assert [state["x"] for state in states] == ["(x)"] * 30
    assert len(connections) <= 3


def test_deltas_arrive_one_by_one(serve):
    seen = threading.Event()

    def answer(handler: Handler, body: bytes) -> None:
        handler.begin()
        handler.event(Delta(0, "x", "he"))
        assert seen.wait(5.0)
        handler.event(Delta(0, "x", "llo"))
        handler.event(value(0, "x", "hello"))
        handler.event(Done())
        handler.chunk(b"")

    with HttpBackend(serve(answer).url) as backend:
        events = function(lambda s: s.__iadd__(gen("x"))).stream(backend=backend)
        assert next(events) == Delta(0, "x", "he")
        seen.set()
        assert next(events) == Delta(0, "x", "llo")
        assert [type(event) for event in events] == [Value, Done]


def test_a_broken_stream_is_an_error(serve):
    def answer(handler: Handler, body: bytes) -> None:
        handler.begin()
        handler.event(Delta(0, "x", "he"))
        handler.chunk(b"")

    with HttpBackend(serve(answer).url) as backend:
        with pytest.raises(BackendError, match="ended in the middle") as caught:
            list(backend.run(PROGRAM))
        assert (caught.value.code, caught.value.retryable) == ("broken_stream", True)
        with pytest.raises(ProgramError, match="ended in the middle"):
            two.run(backend=backend)


@pytest.mark.parametrize(
    ("code", "retryable"),
    [("shutting_down", True), ("engine_overloaded", True), ("reader_too_slow", False), ("internal_error", False)],
)
@pytest.mark.parametrize("half", [b"", b'data: {"type":"value","bra\n\n'])
def test_an_error_that_a_server_writes_into_the_stream_is_told_as_it_is(serve, code, retryable, half):
    """After what came before it, of which an event may be cut off."""

    def answer(handler: Handler, body: bytes) -> None:
        handler.begin()
        error = {"error": {"message": "The server says why.", "type": "server_error", "param": "ops", "code": code}}
        delta = b"data: " + msgspec.json.encode(Delta(0, "x", "he")) + b"\n\n"
        handler.chunk(delta + half + b"data: " + json.dumps(error).encode() + b"\n\n")
        handler.chunk(b"")

    with HttpBackend(serve(answer).url) as backend:
        events = backend.run(PROGRAM)
        assert next(events) == Delta(0, "x", "he")
        with pytest.raises(BackendError, match="The server says why") as caught:
            next(events)
    assert (caught.value.code, caught.value.param, caught.value.retryable) == (code, "ops", retryable)


def test_an_event_that_is_cut_off_is_the_end_of_a_broken_stream(serve):
    def answer(handler: Handler, body: bytes) -> None:
        handler.begin()
        handler.chunk(b'data: {"type":"value","bra\n\n')
        handler.chunk(b"")

    with HttpBackend(serve(answer).url) as backend, pytest.raises(BackendError, match="in the middle") as caught:
        list(backend.run(PROGRAM))
    assert (caught.value.code, caught.value.retryable) == ("broken_stream", True)


@pytest.mark.parametrize(("said", "retryable"), [("false", False), ("true", True), ("", None)])
@pytest.mark.parametrize("status", [400, 503])
def test_what_a_server_says_of_a_retry_goes_before_its_status(serve, status, said, retryable):
    def answer(handler: Handler, body: bytes) -> None:
        content = json.dumps({"error": {"message": "no", "code": "engine_stuck"}}).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(content)))
        if said:
            handler.send_header("X-Should-Retry", said)
        handler.end_headers()
        handler.wfile.write(content)

    async def main(url: str) -> BackendError:
        backend = HttpBackend(url)
        with pytest.raises(BackendError) as caught:
            await anext(backend.arun(PROGRAM))
        await backend.aclose()
        return caught.value

    server = serve(answer)
    expected = status == 503 if retryable is None else retryable
    with HttpBackend(server.url) as backend:
        with pytest.raises(BackendError) as caught:
            next(backend.run(PROGRAM))
        with pytest.raises(BackendError) as flushed:
            backend.flush_cache()
    assert (caught.value.retryable, asyncio.run(main(server.url)).retryable) == (expected, expected)
    assert flushed.value.retryable == expected


def test_an_answer_without_an_end_is_an_error(serve, monkeypatch):
    monkeypatch.setattr(http_module, "MAX_ANSWER_BYTES", 1 << 20)

    def answer(handler: Handler, body: bytes) -> None:
        if handler.path == "/flush_cache":
            handler.send(200, b" " * (1 << 21))
            return
        handler.begin()
        with contextlib.suppress(OSError):
            for _ in range(64):
                handler.chunk(b"x" * (1 << 16))

    with HttpBackend(serve(answer).url) as backend:
        for call in (lambda: list(backend.run(PROGRAM)), backend.flush_cache):
            with pytest.raises(BackendError, match="longer than any can be") as caught:
                call()
            assert (caught.value.code, caught.value.retryable) == ("broken_stream", False)


def test_a_line_is_read_in_time_linear_in_its_length():
    events, part = http_module._Events(), b"x" * 64
    began = time.thread_time()
    for _ in range(1 << 15):
        assert events.feed(part) == []
    assert time.thread_time() - began < 0.5


def test_a_connection_that_is_cut_is_an_error(serve):
    def answer(handler: Handler, body: bytes) -> None:
        handler.begin()
        handler.event(Delta(0, "x", "he"))
        handler.close_connection = True

    async def main(url: str) -> None:
        backend = HttpBackend(url)
        try:
            with pytest.raises(BackendError):
                [event async for event in backend.arun(PROGRAM)]
        finally:
            await backend.aclose()

    server = serve(answer)
    with HttpBackend(server.url) as backend, pytest.raises(BackendError, match="cannot be reached") as caught:
        list(backend.run(PROGRAM))
    assert caught.value.code == "connection_error"
    asyncio.run(main(server.url))


@pytest.mark.parametrize(
    ("status", "body", "code", "param", "retryable"),
    [
        (400, {"error": {"message": "too long", "code": "context_length_exceeded", "param": "ops"}},
         "context_length_exceeded", "ops", False),
        (429, {"error": {"message": "full", "code": "engine_overloaded"}}, "engine_overloaded", None, True),
        (401, {"error": {"message": "no key", "code": None}}, "http_error", None, False),
        (502, "<html>", "http_error", None, True),
    ],
)  # fmt: skip
def test_error_bodies_become_errors(serve, status, body, code, param, retryable):
    content = json.dumps(body).encode() if isinstance(body, dict) else body.encode()
    server = serve(lambda handler, _: handler.send(status, content))

    async def main() -> BackendError:
        backend = HttpBackend(server.url)
        with pytest.raises(BackendError) as caught:
            await anext(backend.arun(PROGRAM))
        await backend.aclose()
        return caught.value

    with HttpBackend(server.url) as backend, pytest.raises(BackendError) as caught:
        next(backend.run(PROGRAM))
    for error in (caught.value, asyncio.run(main())):
        assert (error.status, error.code, error.param, error.retryable) == (status, code, param, retryable)
    message = body["error"]["message"] if isinstance(body, dict) else "status 502: <html>"
    assert message in caught.value.message


def test_a_tool_that_the_server_lacks_is_an_error_that_says_what_to_do(serve):
    body = {"error": {"message": "there is no tool 'search'", "code": "unknown_tool", "param": "ops"}}
    server = serve(lambda handler, _: handler.send(400, json.dumps(body).encode()))
    with (
        HttpBackend(server.url) as backend,
        pytest.raises(BackendError, match=r"bough serve --tools FILE\.py") as caught,
    ):
        next(backend.run(PROGRAM, {}))
    assert caught.value.code == "unknown_tool"


def test_a_huge_error_body_is_not_read_to_its_end(serve):
    def answer(handler: Handler, body: bytes) -> None:
        handler.send_response(500)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        try:
            while True:
                handler.chunk(b"x" * 65536)
        except OSError:
            handler.server.left.set()
            handler.close_connection = True

    server = serve(answer)
    with HttpBackend(server.url) as backend, pytest.raises(BackendError, match="status 500"):
        list(backend.run(PROGRAM))
    assert server.left.wait(5.0)


def test_a_server_that_speaks_otherwise_is_an_error(serve):
    def answer(handler: Handler, body: bytes) -> None:
        handler.begin()
        handler.chunk(b'data: {"type": "novel"}\n\n')
        handler.chunk(b"")

    with HttpBackend(serve(answer).url) as backend, pytest.raises(BackendError, match="same version"):
        list(backend.run(PROGRAM))


def test_nobody_there_is_an_error():
    server = Server(lambda handler, body: None)
    server.server_close()
    with HttpBackend(server.url) as backend:
        with pytest.raises(BackendError) as caught:
            list(backend.run(PROGRAM))
        assert (caught.value.code, caught.value.retryable) == ("connection_error", True)
        with pytest.raises(BackendError):
            backend.drop("p")


def test_a_silent_server_is_given_up(serve):
    release = threading.Event()

    def answer(handler: Handler, body: bytes) -> None:
        handler.begin()
        release.wait(5.0)

    with HttpBackend(serve(answer).url, timeout_s=0.1) as backend:
        start = time.monotonic()
        with pytest.raises(BackendError):
            list(backend.run(PROGRAM))
        assert time.monotonic() - start < 2.0
    release.set()


def test_leaving_closes_the_connection(serve):
    def answer(handler: Handler, body: bytes) -> None:
        handler.begin()
        try:
            while True:
                handler.event(Delta(0, "x", "h" * 1000))
                time.sleep(0.001)
        except OSError:
            handler.server.left.set()
            handler.close_connection = True

    server = serve(answer)
    with HttpBackend(server.url) as backend:
        events: Any = backend.run(PROGRAM)
        next(events)
        events.close()
        assert server.left.wait(5.0)


def test_drop_and_flush_cache(serve):
    answers = iter([(200, b'{"flushed": true}'), (200, b'{"flushed": false}'), (500, b"")])
    server = serve(lambda handler, body: handler.send(*next(answers)))
    with HttpBackend(server.url) as backend:
        backend.drop("abc")
        backend.drop("unknown")
        assert backend.flush_cache()
        assert not backend.flush_cache()
        with pytest.raises(BackendError):
            backend.flush_cache()
    assert [call[:2] for call in server.calls[:2]] == [
        ("DELETE", "/v1/programs/abc"),
        ("DELETE", "/v1/programs/unknown"),
    ]


def dying(handler: Handler, body: bytes) -> None:
    """A server that has made one value, begun another, and is gone."""
    handler.begin()
    handler.event(Delta(0, "x", "one"))
    handler.event(value(0, "x", "one"))
    handler.event(Delta(0, "y", "tw"))
    handler.wfile.flush()
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


@function
def long(s):
    s += "Say " + gen("x") + gen("y")


@pytest.mark.parametrize("way", ["run", "arun", "stream", "astream", "run_batch"])
def test_a_server_that_dies_leaves_what_it_had_made(serve, way):
    server = serve(dying)

    async def arun() -> None:
        await long.arun(backend=HttpBackend(server.url))

    async def astream() -> None:
        async for _ in long.stream(backend=HttpBackend(server.url)):
            pass

    ways: dict[str, Callable[[], object]] = {
        "run": lambda: long.run(backend=HttpBackend(server.url)),
        "arun": lambda: asyncio.run(arun()),
        "stream": lambda: list(long.stream(backend=HttpBackend(server.url))),
        "astream": lambda: asyncio.run(astream()),
        "run_batch": lambda: long.run_batch([{}], backend=HttpBackend(server.url))[0]["y"],
    }
    start = time.monotonic()
    with pytest.raises(ProgramError, match="cannot be reached") as caught:
        ways[way]()
    assert time.monotonic() - start < 5
    error = caught.value
    assert isinstance(error.__cause__, BackendError)
    assert (error.code, error.__cause__.retryable) == ("connection_error", True)
    assert error.state["x"] == "one"
    with pytest.raises(ProgramError):
        error.state["y"]


def test_keys_that_are_no_header_are_refused():
    with pytest.raises(RequestError, match="api_key"):
        HttpBackend("http://127.0.0.1:1", api_key="a\r\nX: b")


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "localhost", "ftp://127.0.0.1", "http://", "http://[::1", "http://a:b"]
)
def test_what_is_no_address_is_refused(url):
    with pytest.raises(RequestError) as caught:
        HttpBackend(url)
    assert caught.value.param == "base_url"


def test_a_path_and_a_name_in_the_address_are_sent(serve):
    server = serve(mocked(MockBackend({"x": "one", "y": "2"})))

    async def main() -> None:
        backend = HttpBackend(server.url.replace("//", "//ann:se%20cret@") + "/inner/v1/")
        await two.arun(backend=backend)
        await asyncio.to_thread(two.run, backend=backend)
        await backend.aclose()

    asyncio.run(main())
    basic = f"Basic {base64.b64encode(b'ann:se cret').decode()}"
    assert set(server.calls) == {("POST", "/inner/v1/programs", basic)}
