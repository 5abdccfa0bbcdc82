"""Failures of an API reach the program whole: its code, whether to try again, its cause and the line."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

import bough
from bough.lang.backends.apis.api_backend import ApiBackend
from bough.lang.diagnostics.errors import BackendError
from bough.runtime.protocol.program import Gen

from .fake_api import Answer, Api, Exchange, serving

Start = Any


@pytest.fixture(params=[bough.OpenAI, bough.Anthropic], ids=lambda kind: kind.__name__)
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    with ExitStack() as stack:

        def make(answer: Answer, **options: Any) -> tuple[Api, ApiBackend]:
            server = stack.enter_context(serving(answer))
            fields = {"api_key": "k", "max_retries": 2, **options}
            backend = stack.enter_context(request.param("m", base_url=server.url + "/v1", **fields))
            backend._client._pause_s = 0.001
            return server, backend

        yield make


@bough.function
def body(s: Any) -> None:
    s += bough.user("Hi") + bough.assistant(bough.gen("first"))
    s += bough.user("And?") + bough.assistant(bough.gen("second"))


def say(exchange: Exchange, text: str) -> None:
    if exchange.path.endswith("/messages"):
        exchange.message(text)
    else:
        exchange.say(text)


def second(refuse: Answer) -> Answer:
    """The first request is answered, the others are not."""

    def answer(exchange: Exchange) -> None:
        if len(exchange.body["messages"]) < 3:
            say(exchange, "hello")
        else:
            refuse(exchange)

    return answer


def failed(backend: ApiBackend) -> tuple[bough.ProgramError, BackendError]:
    with pytest.raises(bough.ProgramError) as caught:
        body.run(backend=backend)
    cause = caught.value.__cause__
    assert isinstance(cause, BackendError)
    assert caught.value.code == cause.code
    return caught.value, cause


@pytest.mark.parametrize(
    ("status", "retryable"),
    [(400, False), (401, False), (404, False), (429, True), (500, True), (501, False), (520, True), (529, True)],
)
def test_a_refusal_keeps_its_status_and_its_cause(start: Start, status: int, retryable: bool) -> None:
    server, backend = start(second(lambda exchange: exchange.refuse(status)))
    error, cause = failed(backend)
    assert (error.code, cause.status, cause.retryable) == ("some_error", status, retryable)
    assert len(server.bodies) == 1 + (3 if retryable else 1), "two retries, if it may be tried again"
    assert error.place is not None and error.place.function == "body"
    assert isinstance(error.instruction, Gen)
    assert error.state["first"] == "hello"


@pytest.mark.parametrize(
    ("status", "said", "retryable"), [(503, "false", False), (400, "true", True), (503, "?", True)]
)
def test_the_api_says_whether_to_try_again(start: Start, status: int, said: str, retryable: bool) -> None:
    server, backend = start(second(lambda exchange: exchange.refuse(status, **{"x-should-retry": said})))
    _, cause = failed(backend)
    assert (cause.status, cause.retryable, len(server.bodies)) == (status, retryable, 4 if retryable else 2)


def test_an_answer_without_a_body_has_a_code(start: Start) -> None:
    def refuse(exchange: Exchange) -> None:
        exchange.send_response(429)
        exchange.send_header("Content-Length", "0")
        exchange.end_headers()

    error, cause = failed(start(second(refuse))[1])
    assert (error.code, cause.status, cause.retryable) == ("rate_limit_exceeded", 429, True)


def test_a_rate_limit_that_passes_is_waited_for(start: Start) -> None:
    refusals = iter([True, False])

    def refuse(exchange: Exchange) -> None:
        if next(refusals):
            exchange.refuse(429, Retry_After="0.2")
        else:
            say(exchange, "more")

    server, backend = start(second(refuse))
    begin = time.monotonic()
    assert body.run(backend=backend)["second"] == "more"
    assert 0.2 <= time.monotonic() - begin < 5
    assert len(server.bodies) == 3


def test_a_rate_limit_that_lasts_longer_than_anyone_waits_is_told_at_once(start: Start) -> None:
    server, backend = start(second(lambda exchange: exchange.refuse(429, Retry_After="3600")))
    _, cause = failed(backend)
    assert cause.retryable and len(server.bodies) == 2


def test_nobody_there(start: Start) -> None:
    server, backend = start(lambda exchange: None)
    server.shutdown()
    server.server_close()
    error, cause = failed(backend)
    assert (error.code, cause.retryable) == ("connection_error", True)
    assert isinstance(cause.__cause__, httpx.ConnectError)


def test_a_silent_api_is_given_up(start: Start) -> None:
    release = threading.Event()

    def keep_silent(exchange: Exchange) -> None:
        release.wait(10)

    _, backend = start(second(keep_silent), timeout_s=0.1, max_retries=1)
    error, cause = failed(backend)
    release.set()
    assert (error.code, cause.retryable) == ("connection_error", True)
    assert "nothing came in time" in error.message
    assert isinstance(cause.__cause__, httpx.ReadTimeout)


def test_a_branch_that_fails_alone_has_its_cause(start: Start) -> None:
    @bough.function
    def two(s: Any) -> None:
        s += bough.user("Hi")
        branches = s.fork(2, isolated=True)
        branches[0] += bough.assistant(bough.gen("x"))
        branches[1] += bough.user("No") + bough.assistant(bough.gen("x"))
        branches.join(errors="value")

    def answer(exchange: Exchange) -> None:
        if "No" in str(exchange.body["messages"]):
            exchange.refuse(500)
        else:
            say(exchange, "fine")

    fine, error = two.run(backend=start(answer, max_retries=0)[1])["x"]
    assert fine == "fine"
    assert isinstance(error.__cause__, BackendError)
    assert (error.code, error.__cause__.status, error.__cause__.retryable) == ("some_error", 500, True)


def test_what_may_pass_is_not_recorded(start: Start, tmp_path: Path) -> None:
    down = threading.Event()
    down.set()

    def answer(exchange: Exchange) -> None:
        if down.is_set():
            exchange.refuse(500)
        else:
            say(exchange, "fine")

    @bough.function
    def one(s: Any) -> None:
        s += bough.user("Hi") + bough.assistant(bough.gen("x"))

    backend = start(answer, max_retries=0)[1]
    with bough.Cassette(tmp_path / "tape.jsonl", backend) as tape:
        with pytest.raises(bough.ProgramError, match="status 500"):
            one.run(backend=tape)
        down.clear()
        assert one.run(backend=tape)["x"] == "fine"
    with bough.Cassette(tmp_path / "tape.jsonl", mode="replay") as tape:
        assert one.run(backend=tape)["x"] == "fine"
