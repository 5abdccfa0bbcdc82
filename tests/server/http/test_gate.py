"""A line for each request, written beside the event loop, and dropped before it delays anyone."""

from __future__ import annotations

import io
import json
import signal
import threading
import time
from typing import Any

import pytest

from bough.runtime.protocol.errors import ErrorInfo
from bough.runtime.protocol.program import Delta, Failed
from bough.runtime.protocol.request import Usage
from bough.server.http.gate import Line, RequestLog
from bough.server.http.keys import parse_keys

from ..conftest import Start
from ..fake_client import FakeClient, Script

LINE = Line(
    id="req_1",
    key="alice",
    method="POST",
    path="/v1/completions",
    status=200,
    error="",
    prompt_tokens=3,
    cached_tokens=1,
    completion_tokens=2,
    first_s=0.1,
    seconds=0.2,
)


def wait_for_lines(target: io.StringIO, count: int) -> list[dict[str, Any]]:
    deadline = time.monotonic() + 30
    while target.getvalue().count("\n") < count and time.monotonic() < deadline:
        time.sleep(0.005)
    return [json.loads(line) for line in target.getvalue().splitlines()]


def test_a_line_tells_whose_request_it_was_and_what_it_took(start: Start, monkeypatch: Any) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr("sys.stderr", stderr)
    server = start(keys=parse_keys(["alice key-a"]), request_log=True)
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    http = server.http(headers={"authorization": "Bearer key-a"})
    http.post("/v1/chat/completions", json=chat)
    server.http().post("/v1/chat/completions", json=chat)
    http.get("/livez")
    http.get("/no%0Awhere")
    answered, refused, lost = wait_for_lines(stderr, 3)
    assert answered["id"].startswith("req_")
    assert {name: answered[name] for name in ("key", "method", "path", "status")} == {
        "key": "alice",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
    }
    assert (answered["prompt_tokens"], answered["cached_tokens"], answered["completion_tokens"]) == (9, 3, 5)
    assert 0 < answered["first_s"] <= answered["seconds"] < 30
    assert (refused["key"], refused["status"], refused["completion_tokens"]) == ("", 401, 0)
    assert lost["status"] == 404
    assert [line["error"] for line in (answered, refused, lost)] == ["", "invalid_api_key", "unknown_url"]
    assert "key-a" not in stderr.getvalue()


DEAD = ErrorInfo(code="engine_dead", message="the engine process has died")


def test_a_stream_that_fails_is_told_of_and_paid_for(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its status is 200. An engine that has ended tells no usage."""
    stderr = io.StringIO()
    monkeypatch.setattr("sys.stderr", stderr)
    died = Script(["Hel", "lo"], reason="error", error=DEAD, usage=Usage())
    engine = FakeClient(lambda _: died, play=lambda _: [Delta(0, "x", "a"), Failed(error=DEAD)])
    server = start(engine, keys=parse_keys(["alice key-a", "root key-r admin"]), request_log=True)
    http = server.http(headers={"authorization": "Bearer key-a"})
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    assert "engine_dead" in http.post("/v1/chat/completions", json={**chat, "stream": True}).text
    assert http.post("/v1/chat/completions", json=chat).status_code == 503
    program = {"id": "p", "ops": [{"type": "text", "branch": 0, "parts": ["x"]}]}
    assert "engine_dead" in http.post("/v1/programs", json=program).text
    lines = wait_for_lines(stderr, 3)
    assert [(line["status"], line["error"]) for line in lines] == [
        (200, "engine_dead"), (503, "engine_dead"), (200, "engine_dead"),
    ]  # fmt: skip
    assert [(line["prompt_tokens"], line["completion_tokens"]) for line in lines[:2]] == [(9, 5), (9, 5)]
    page = server.http(headers={"authorization": "Bearer key-r"}).get("/metrics").text
    assert 'bough_streams_failed_total{code="engine_dead"} 2\n' in page
    assert 'bough_key_tokens_total{key="alice",kind="completion"} 10\n' in page


def test_a_stream_that_is_cut_off_by_the_end_of_the_server_is_told_of(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr("sys.stderr", stderr)
    server = start(FakeClient(lambda _: Script(["x"] * 1000, delay_s=0.01)), request_log=True, drain_timeout_s=0.1)
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    with server.http().stream("POST", "/v1/chat/completions", json=chat) as answer:
        parts = answer.iter_text()
        next(parts)
        server.server.handle_exit(signal.SIGTERM, None)
        assert "shutting_down" in "".join(parts)
    (line,) = wait_for_lines(stderr, 1)
    assert (line["status"], line["error"]) == (200, "shutting_down")


def test_lines_that_nobody_reads_are_dropped_and_counted(monkeypatch: Any) -> None:
    monkeypatch.setattr("bough.runtime.client.lines.MAX_WAITING", 5)
    read = threading.Event()

    class Slow(io.StringIO):
        def write(self, text: str) -> int:
            read.wait(10)
            return super().write(text)

    target = Slow()
    log = RequestLog(target)
    started = time.monotonic()
    for _ in range(100):
        log.write(LINE)
    assert time.monotonic() - started < 1.0
    read.set()
    num_written, deadline = 100, time.monotonic() + 5
    while time.monotonic() < deadline:
        log.write(LINE)  # it brings what was dropped before it
        num_written += 1
        time.sleep(0.01)
        lines = [json.loads(line) for line in target.getvalue().splitlines()]
        num_dropped = sum(line.get("dropped_lines", 0) for line in lines)
        if num_dropped + sum("id" in line for line in lines) == num_written:
            break
    else:
        raise AssertionError(f"{num_dropped} of {num_written} said to be dropped, {len(lines)} lines")
    assert 90 <= num_dropped <= num_written - 5


def test_a_closed_end_is_no_fault() -> None:
    class Broken(io.StringIO):
        broken = True

        def write(self, text: str) -> int:
            if self.broken:
                raise BrokenPipeError
            return super().write(text)

    target = Broken()
    log = RequestLog(target)
    log.write(LINE)
    log._lines.flush()
    target.broken = False
    log.write(LINE)
    assert [line.get("dropped_lines") for line in wait_for_lines(target, 2)] == [1, None]
