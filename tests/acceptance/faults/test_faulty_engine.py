"""Promise: a pass that hangs, loses its device or computes no numbers harms nobody for longer than the bounds say."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from ..prompts import HANG, LOSE, POISON, SWELL
from ..server_process import ServerProcess
from .test_faults import FORM, alive, children, complete, engine_of, options, ready_code, wait_until

pytestmark = pytest.mark.slow

LONG: dict[str, Any] = {"max_tokens": 1900}


Faulty = Callable[[], ServerProcess]


@pytest.fixture
def faulty(folder: Path, repository: Path) -> Faulty:
    """Starts servers whose engine is given up after six seconds without progress."""
    command = (sys.executable, "-P", str(Path(__file__).with_name("faulty_server.py")), str(folder), "6.0")
    return lambda: ServerProcess(command=command, env={**os.environ, "PYTHONPATH": str(repository)})


def engine(server: ServerProcess) -> int:
    (found,) = children(server.process.pid)
    return found


def test_a_pass_that_hangs_is_seen_and_replaced(faulty: Faulty, figures: Callable[[str], None]) -> None:
    """Its process lives, and its heart beats."""
    with faulty() as server, ThreadPoolExecutor(8) as pool:
        first = engine(server)
        streams = [pool.submit(complete, server, stream=True, **LONG) for _ in range(2)]
        others = [pool.submit(complete, server, **LONG) for _ in range(2)]
        server.wait_until(lambda found: found["bough_running"] == 4, 10.0)
        began = time.monotonic()
        others.append(pool.submit(complete, server, prompt=HANG))
        wait_until(lambda: ready_code(server) == "engine_stuck", 6.0)
        seen_s = time.monotonic() - began
        assert complete(server).json()["error"]["code"] == "engine_stuck"
        answers = [each.result() for each in others]
        told = [each.result() for each in streams]
        over_s = time.monotonic() - began
        assert {answer.status_code for answer in answers} == {503}
        assert {answer.json()["error"]["code"] for answer in answers} == {"engine_stuck"}
        assert {answer.headers.get("x-should-retry") for answer in answers} == {"false"}
        assert all('"code":"engine_stuck"' in each.text and "[DONE]" not in each.text for each in told)
        assert over_s < 9.0
        back_s = wait_until(lambda: ready_code(server) == "ok", 60.0)
        assert complete(server, max_tokens=5).status_code == 200
        assert engine(server) != first and not alive([first])
    said = "".join(server.lines)
    assert said.count(f"process {first} is killed") == 1
    assert "in compute_or_break" in said  # where it hung
    figures(f"a pass that hangs: seen after {seen_s:.1f} s, its requests ended after {over_s:.1f} s (limit 6 s), the "
            f"next engine ready {back_s:.1f} s later")  # fmt: skip


def test_a_lost_device_is_told_of_and_the_engine_replaced(faulty: Faulty, figures: Callable[[str], None]) -> None:
    """Twice within ten minutes: what was in it then must not be sent again."""
    with faulty() as server, ThreadPoolExecutor(8) as pool:
        text = complete(server, max_tokens=20).json()["choices"][0]["text"]
        for number, retry in enumerate((None, "false"), start=1):
            stream = pool.submit(complete, server, stream=True, **LONG)
            other = pool.submit(complete, server, **LONG)
            server.wait_until(lambda found: found["bough_running"] == 2, 20.0)
            began = time.monotonic()
            lost = complete(server, prompt=LOSE)
            answers = [lost, other.result()]
            said = stream.result().text
            told_s = time.monotonic() - began
            assert told_s < 2.0
            assert {(answer.status_code, answer.json()["error"]["code"]) for answer in answers} == {
                (503, "engine_dead")
            }
            assert {answer.headers.get("x-should-retry") for answer in answers} == {retry}
            assert all(("retry-after" in answer.headers) is (retry is None) for answer in answers)
            assert '"code":"engine_dead"' in said and "[DONE]" not in said
            server.wait_until(lambda found: found["bough_restarts_total"] == number, 10.0)  # noqa: B023
            back_s = wait_until(lambda: ready_code(server) == "ok", 60.0)
            assert complete(server, max_tokens=20).json()["choices"][0]["text"] == text
        figures(f"a lost device: all were told after {told_s:.2f} s, the next engine ready {back_s:.1f} s later")


@pytest.mark.parametrize("stream", [False, True])
def test_numbers_that_are_not_finite_end_their_request_alone(faulty: Faulty, *, stream: bool) -> None:
    with faulty() as server, ThreadPoolExecutor(2) as pool:
        expected = complete(server, prompt="neighbour", max_tokens=300).json()["choices"][0]["text"]
        neighbour = pool.submit(complete, server, prompt="neighbour", max_tokens=300)
        server.wait_until(lambda found: found["bough_running"] == 1, 10.0)
        bad = complete(server, prompt=f"a prompt{POISON}", stream=stream)
        assert neighbour.result().json()["choices"][0]["text"] == expected
        assert bad.status_code == 500 and bad.json()["error"]["code"] == "nonfinite_logits"
        assert bad.headers["x-should-retry"] == "false"
        found = server.metrics()
        assert found["bough_restarts_total"] == 0 and found['bough_finished_total{reason="error"}'] == 1
        assert complete(server, prompt="a prompt", max_tokens=5).status_code == 200


def test_a_request_that_there_is_never_memory_for_ends_alone(faulty: Faulty) -> None:
    """Its pass is made again without the others, who hear nothing of it."""
    with faulty() as server, ThreadPoolExecutor(2) as pool:
        expected = complete(server, prompt="neighbour", max_tokens=300).json()["choices"][0]["text"]
        for stream in (False, True):
            neighbour = pool.submit(complete, server, prompt="neighbour", max_tokens=300)
            server.wait_until(lambda found: found["bough_running"] == 1, 10.0)
            large = complete(server, prompt=f"a prompt{SWELL}", stream=stream)
            assert large.status_code == 500 and large.json()["error"]["code"] == "out_of_memory"
            assert large.headers["x-should-retry"] == "false"
            assert neighbour.result().json()["choices"][0]["text"] == expected
        found = server.metrics()
        assert found["bough_restarts_total"] == 0 and found['bough_finished_total{reason="error"}'] == 2


@pytest.mark.parametrize("num_chars", [100, 300_000])
def test_a_stopped_worker_for_constraints_holds_nobody_else_up(folder: Path, num_chars: int) -> None:
    """Also with a schema of more than a pipe holds. Who asked for that one is answered in the end, or refused."""
    with ServerProcess(*options(folder), "--request-timeout", "12") as server, ThreadPoolExecutor(2) as pool:
        assert complete(server, max_tokens=3, response_format=FORM).status_code == 200
        process = engine_of(server)
        wait_until(lambda: bool(children(process)), 10.0)
        stopped = children(process)
        for worker in stopped:
            os.kill(worker, signal.SIGSTOP)
        schema = {"anyOf": [{"type": "integer", "minimum": 7}, {"type": "string"}], "description": "x" * num_chars}
        form = {"type": "json_schema", "json_schema": {"name": "value", "schema": schema}}
        began = time.monotonic()
        held = pool.submit(complete, server, max_tokens=3, response_format=form)
        time.sleep(0.3)
        other: httpx.Response = complete(server, max_tokens=300)
        assert other.status_code == 200
        answer = held.result()
        assert time.monotonic() - began < 20.0
        assert answer.status_code == 200 or answer.json()["error"]["code"] == "generation_timeout"
        fresh = {"type": "json_schema", "json_schema": {"name": "value", "schema": {**schema, "description": "y"}}}
        wait_until(lambda: complete(server, max_tokens=3, response_format=fresh).status_code == 200, 30.0)
        assert engine_of(server) == process
