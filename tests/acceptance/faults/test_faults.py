"""Promise: whatever befalls the server's processes, clients are told, and no process is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from ..server_process import ServerProcess

pytestmark = pytest.mark.slow

BODY = {"model": "tiny", "prompt": "hello", "max_tokens": 400, "temperature": 0, "ignore_eos": True}

SCHEMA = {"anyOf": [{"type": "integer", "minimum": 3}, {"type": "string"}]}
FORM = {"type": "json_schema", "json_schema": {"name": "value", "schema": SCHEMA}}


def options(folder: Path) -> list[str]:
    return ["--model", str(folder), "--served-model-name", "tiny", "--num-pages", "4096", "--no-request-log"]


def children(pid: int) -> list[int]:
    """Processes that `pid` has started, and theirs, which still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            found += [int(stat.parent.name), *children(int(stat.parent.name))]
    return found


def alive(pids: list[int]) -> list[int]:
    def runs(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    return [pid for pid in pids if runs(pid)]


def wait_until(true: Callable[[], bool], seconds: float) -> float:
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < seconds, "it did not come true"
        time.sleep(0.01)
    return time.monotonic() - started


def complete(server: ServerProcess, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/completions", json={**BODY, **fields}, timeout=60)


def ready_code(server: ServerProcess) -> str:
    answer = httpx.get(f"{server.url}/readyz", timeout=5)
    return "ok" if answer.status_code == 200 else str(answer.json()["error"]["code"])


def engine_of(server: ServerProcess) -> int:
    (engine,) = [pid for pid in children(server.process.pid) if b"engine_process" in _command(pid)]
    return engine


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


# The engine's process


def test_a_killed_engine_is_told_of_and_replaced(folder: Path, figures: Callable[[str], None]) -> None:
    with ServerProcess(*options(folder)) as server:
        text = complete(server, max_tokens=20).json()["choices"][0]["text"]
        lines: list[str] = []
        with httpx.stream("POST", f"{server.url}/v1/completions", json={**BODY, "stream": True}, timeout=30) as stream:
            for line in stream.iter_lines():
                if not lines:
                    os.kill(engine_of(server), signal.SIGKILL)
                    killed = time.monotonic()
                lines.append(line)
            told_s = time.monotonic() - killed
        assert '"code":"engine_dead"' in "".join(lines[-2:]) and "data: [DONE]" not in lines
        assert told_s < 2.0
        wait_until(lambda: ready_code(server) != "ok", 2.0)
        assert httpx.get(f"{server.url}/livez", timeout=5).status_code == 200
        refused = complete(server)
        if refused.status_code != 200:  # it is not back yet
            assert refused.status_code == 503 and "retry-after" in refused.headers
            assert refused.json()["error"]["code"] in {"engine_dead", "engine_starting"}
        back_s = wait_until(lambda: ready_code(server) == "ok", 60.0)
        assert complete(server, max_tokens=20).json()["choices"][0]["text"] == text
        assert server.metrics()["bough_restarts_total"] == 1
        figures(
            f"an engine that is killed: its stream was told after {told_s:.2f} s, the next ready {back_s:.1f} s later"
        )


def test_all_who_are_there_hear_of_a_killed_engine(folder: Path, figures: Callable[[str], None]) -> None:
    """Four streams and four other answers that have begun, and eight requests that wait for a seat."""
    with ServerProcess(*options(folder), "--max-num-seqs", "8") as server, ThreadPoolExecutor(16) as pool:
        streams = [pool.submit(complete, server, stream=True) for _ in range(4)]
        others = [pool.submit(complete, server) for _ in range(4)]
        server.wait_until(lambda found: found["bough_running"] == 8, 10.0)
        queued = [pool.submit(complete, server) for _ in range(8)]
        server.wait_until(lambda found: found["bough_running"] + found["bough_waiting"] > 8, 10.0)
        os.kill(engine_of(server), signal.SIGKILL)
        killed = time.monotonic()
        answers = [each.result() for each in streams + others + queued]
        told_s = time.monotonic() - killed
        wait_until(lambda: ready_code(server) == "ok", 60.0)  # else the end waits for the start
    began = [answer for answer in answers if answer.headers["content-type"].startswith("text/event-stream")]
    for answer in began:
        assert '"code":"engine_dead"' in answer.text.split("\n\n")[-2] and "[DONE]" not in answer.text
    told = [answer for answer in answers if answer not in began]
    assert {answer.status_code for answer in told} == {503}
    assert {answer.json()["error"]["code"] for answer in told} <= {"engine_dead", "engine_starting"}
    assert began and len(told) >= 12 and told_s < 2.0
    figures(f"16 clients of an engine that is killed: the last was told after {told_s:.2f} s")


def test_refusals_during_a_restart_cost_a_key_nothing(folder: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice sk-0123456789abcdef tokens_per_minute=600\n")
    keys.chmod(0o600)
    headers = {"authorization": "Bearer sk-0123456789abcdef"}
    with ServerProcess(*options(folder), "--api-key-file", str(keys)) as server:
        ask = partial(httpx.post, f"{server.url}/v1/completions", headers=headers, timeout=60)
        body = {**BODY, "prompt": "hello " * 60, "max_tokens": 2}
        first = ask(json=body)
        left = [int(first.headers["x-ratelimit-remaining-tokens"])]
        os.kill(engine_of(server), signal.SIGKILL)
        while (refused := ask(json=body)).status_code != 200:
            assert refused.json()["error"]["code"] in {"engine_dead", "engine_starting"}
            left.append(int(refused.headers["x-ratelimit-remaining-tokens"]))
        assert len(left) > 3 and left == sorted(left)


def test_an_engine_that_is_killed_while_it_loads_ends_the_server(folder: Path) -> None:
    command = [sys.executable, "-P", "-m", "bough.cli", "serve", "--port", "0", *options(folder)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: any(b"engine_process" in _command(pid) for pid in children(process.pid)), 30.0)
        (engine,) = [pid for pid in children(process.pid) if b"engine_process" in _command(pid)]
        os.kill(engine, signal.SIGKILL)
        killed = time.monotonic()
        _, said = process.communicate(timeout=30)
    assert process.returncode not in (0, None) and time.monotonic() - killed < 10.0
    assert "engine process ended with status -9 while it loaded the model" in said and "Traceback" not in said


def test_an_engine_that_is_stopped_for_a_moment_goes_on(folder: Path) -> None:
    with ServerProcess(*options(folder)) as server, ThreadPoolExecutor(1) as pool:
        text = complete(server, max_tokens=300).json()["choices"][0]["text"]
        engine = engine_of(server)
        answer = pool.submit(complete, server, max_tokens=300)
        os.kill(engine, signal.SIGSTOP)
        time.sleep(5.0)
        os.kill(engine, signal.SIGCONT)
        assert answer.result().json()["choices"][0]["text"] == text
        wait_until(lambda: ready_code(server) == "ok", 5.0)
        assert engine_of(server) == engine and server.metrics()["bough_restarts_total"] == 0


def test_a_worker_for_constraints_that_is_killed_is_replaced(folder: Path) -> None:
    with ServerProcess(*options(folder)) as server, ThreadPoolExecutor(1) as pool:
        assert complete(server, max_tokens=3, response_format=FORM).status_code == 200
        engine = engine_of(server)
        wait_until(lambda: bool(children(engine)), 10.0)
        answer = pool.submit(complete, server, max_tokens=300)
        for worker in children(engine):
            os.kill(worker, signal.SIGKILL)
        heavy = {
            "type": "object",
            "properties": {f"p{n}": {"type": "string", "pattern": "^a{3,9}$"} for n in range(20)},
        }
        form = {"type": "json_schema", "json_schema": {"name": "value", "schema": heavy}}
        assert complete(server, max_tokens=3, response_format=form).status_code == 200
        assert answer.result().status_code == 200
        assert engine_of(server) == engine


def test_a_stopped_engine_is_seen_and_ended(folder: Path, figures: Callable[[str], None]) -> None:
    with ServerProcess(*options(folder), "--stuck-timeout", "7", "--request-timeout", "30") as server:
        stopped = engine_of(server)
        os.kill(stopped, signal.SIGSTOP)
        began = time.monotonic()
        with ThreadPoolExecutor(4) as pool:
            waiting = [pool.submit(complete, server) for _ in range(4)]
            wait_until(lambda: ready_code(server) == "engine_stuck", 6.0)
            seen_s = time.monotonic() - began
            slowest = 0.0
            for path in ("livez", "metrics") * 3:
                asked = time.monotonic()
                assert httpx.get(f"{server.url}/{path}", timeout=5).status_code == 200
                slowest = max(slowest, time.monotonic() - asked)
            answers = [each.result() for each in waiting]
        over_s = time.monotonic() - began
        assert {answer.json()["error"]["code"] for answer in answers} == {"engine_stuck"}
        assert {answer.status_code for answer in answers} == {503}
        assert over_s < 10.0 and slowest < 1.0
        wait_until(lambda: ready_code(server) == "ok", 60.0)
        assert not alive([stopped])
        figures(f"an engine that is stopped: seen after {seen_s:.1f} s, its requests ended after {over_s:.1f} s with a "
                f"limit of 7 s, /livez and /metrics within {1e3 * slowest:.0f} ms meanwhile")  # fmt: skip


def test_one_that_may_not_restart_ends_the_server(folder: Path) -> None:
    with ServerProcess(*options(folder), "--restart", "0") as server:
        os.kill(engine_of(server), signal.SIGKILL)
        assert server.process.wait(10) == 5


@pytest.mark.parametrize("stopped", [False, True])
def test_children_end_with_their_parent(folder: Path, *, stopped: bool) -> None:
    with ServerProcess(*options(folder)) as server:
        assert complete(server, max_tokens=3, response_format=FORM).status_code == 200  # a worker for it, too
        wait_until(lambda: len(children(server.process.pid)) >= 2, 10.0)
        mine = children(server.process.pid)
        for pid in mine if stopped else []:
            os.kill(pid, signal.SIGSTOP)
        server.process.kill()
        server.process.wait(10)
        wait_until(lambda: not alive(mine), 2.0)


# Signals


def start(folder: Path, *, seats: int = 64) -> ServerProcess:
    limits = ["--drain-timeout", "20", "--max-num-seqs", str(seats)]
    return ServerProcess(*options(folder), *limits, start_new_session=True)


def test_a_signal_to_the_whole_group_drains(folder: Path) -> None:
    with start(folder) as server, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(complete, server, max_tokens=300)
        server.wait_until(lambda found: found["bough_running"] == 1 or answer.done(), 10.0)
        os.killpg(server.process.pid, signal.SIGTERM)
        assert answer.result().json()["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(20) == 0


def test_under_load_all_that_was_asked_is_answered(folder: Path, figures: Callable[[str], None]) -> None:
    """32 streams that run, and eight requests that wait."""
    with start(folder, seats=32) as server, ThreadPoolExecutor(40) as pool:
        answers = [pool.submit(complete, server, stream=True, max_tokens=450) for _ in range(32)]
        answers += [pool.submit(complete, server, max_tokens=20) for _ in range(8)]
        server.wait_until(lambda found: found.get('bough_key_requests_total{key=""}') == 40, 30.0)
        running = 40 - sum(each.done() for each in answers)
        server.process.terminate()
        told = time.monotonic()
        assert all(each.result().text.endswith("data: [DONE]\n\n") for each in answers[:32])
        assert {each.result().status_code for each in answers} == {200}
        assert server.process.wait(20) == 0
        seconds = time.monotonic() - told
    assert running > 0
    figures(f"a signal under load: {running} under way were answered, ended with 0 after {seconds:.1f} s")


def test_what_has_no_end_is_told_so_when_its_time_is_over(folder: Path) -> None:
    with ServerProcess(*options(folder), "--drain-timeout", "3") as server, ThreadPoolExecutor(4) as pool:
        os.kill(engine_of(server), signal.SIGSTOP)  # what is asked now never ends, and is no fault for five seconds
        answers = [pool.submit(complete, server, stream=True) for _ in range(2)]
        answers += [pool.submit(complete, server) for _ in range(2)]
        time.sleep(0.5)
        server.process.terminate()
        began = time.monotonic()
        codes = [each.result().json()["error"]["code"] for each in answers]
        assert server.process.wait(20) == 0
        assert time.monotonic() - began < 12.0
    assert set(codes) <= {"shutting_down", "engine_stuck"} and "shutting_down" in codes


def open_stream(server: ServerProcess, stack: contextlib.ExitStack) -> Iterator[str]:
    """The lines of a stream that has begun, and whose engine is stopped then."""
    engine = engine_of(server)
    body = {**BODY, "stream": True}
    answer = stack.enter_context(httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60))
    lines = answer.iter_lines()
    assert next(lines).startswith("data: {")
    os.kill(engine, signal.SIGSTOP)
    return lines


def last_event(lines: Iterator[str]) -> str:
    """The code of the error that a stream ends with."""
    *_, last = filter(None, lines)
    return str(json.loads(last.removeprefix("data: "))["error"]["code"])


def test_the_last_event_of_an_open_stream_says_that_the_drain_is_over(folder: Path) -> None:
    with ServerProcess(*options(folder), "--drain-timeout", "2") as server, contextlib.ExitStack() as stack:
        lines = open_stream(server, stack)
        server.process.terminate()
        assert last_event(lines) == "shutting_down"
        assert server.process.wait(20) == 0
    assert not [line for line in server.lines if "ERROR" in line or "Traceback" in line]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_second_signal_is_the_last_event_of_an_open_stream(folder: Path, number: int, status: int) -> None:
    with start(folder) as server, contextlib.ExitStack() as stack:
        lines = open_stream(server, stack)
        for _ in range(2):
            os.killpg(server.process.pid, number)
            time.sleep(0.3)
        assert last_event(lines) == "shutting_down"
        assert server.process.wait(10) == status


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_second_signal_ends_at_once(folder: Path, number: int, status: int) -> None:
    with start(folder) as server:
        engine = engine_of(server)
        os.kill(engine, signal.SIGSTOP)  # so that what runs does not end by itself
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(complete, server)
            time.sleep(0.5)
            os.killpg(server.process.pid, number)
            time.sleep(0.3)
            assert server.process.poll() is None
            began = time.monotonic()
            os.killpg(server.process.pid, number)
            assert server.process.wait(10) == status
            assert time.monotonic() - began < 3.0
            refused = answer.exception() or answer.result()
            assert isinstance(refused, httpx.TransportError) or refused.json()["error"]["code"] == "shutting_down"  # type: ignore[union-attr]
        assert not alive([engine])


HANGING_TOOLS = """
import atexit
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
import bough

pool = ThreadPoolExecutor(1)
atexit.register(lambda: Path("closed").touch())

@bough.tool
def in_an_executor() -> str:
    "Waits in a thread of an executor for what does not come."
    Path("called").touch()
    return pool.submit(Event().wait).result()

@bough.tool
def in_a_thread() -> str:
    "Leaves a thread that has no end."
    Thread(target=Event().wait, daemon=False).start()
    Path("called").touch()
    Event().wait()

@bough.tool
def at_exit() -> str:
    "Leaves a call at the end of the process that has no end."
    atexit.register(Event().wait)
    atexit.register(lambda: Path("closed").touch())
    Path("called").touch()
    Event().wait()
"""


@pytest.mark.parametrize(
    ("tool", "num_signals", "status"),
    [
        ("in_an_executor", 1, 0),
        ("in_an_executor", 2, 143),
        ("in_a_thread", 1, 0),
        ("in_a_thread", 2, 143),
        ("at_exit", 1, 0),
        ("at_exit", 2, 143),
    ],
)
def test_a_tool_that_hangs_does_not_outlive_the_server(
    folder: Path, tmp_path: Path, tool: str, num_signals: int, status: int
) -> None:
    (tmp_path / "tools.py").write_text(HANGING_TOOLS)
    limits = ["--drain-timeout", "1" if num_signals == 1 else "60", "--tools", "tools.py"]
    program = {"id": "p", "ops": [{"type": "use", "branch": 0, "name": "r", "tool": tool, "arguments": []}]}
    with ServerProcess(*options(folder), *limits, cwd=tmp_path) as server, ThreadPoolExecutor(1) as pool:
        mine = children(server.process.pid)
        answer = pool.submit(httpx.post, f"{server.url}/v1/programs", json=program, timeout=60)
        wait_until((tmp_path / "called").exists, 10.0)
        for _ in range(num_signals):
            server.process.terminate()
            time.sleep(0.3)
        began = time.monotonic()
        assert server.process.wait(20) == status
        assert num_signals == 1 or time.monotonic() - began < 4.0
        assert answer.exception() or "shutting_down" in answer.result().text
        assert not alive(mine)
        assert (tmp_path / "closed").exists()


def test_a_signal_at_any_moment_of_the_start_leaves_nothing(folder: Path) -> None:
    rng = random.Random(5)
    for index in range(20):
        number = (signal.SIGTERM, signal.SIGINT)[index % 2]
        command = [sys.executable, "-P", "-m", "bough.cli", "serve", "--port", "0", *options(folder)]
        heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # what runs in the background ignores it
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=heed
        ) as process:
            time.sleep(0.1 + 0.1 * index + rng.random() * 0.1)
            mine = children(process.pid)
            process.send_signal(number)
            try:
                _, said = process.communicate(timeout=30)
            finally:
                process.kill()
            assert process.returncode in (0, -number, 128 + number), (index, process.returncode, said)
        wait_until(lambda mine=mine: not alive(mine), 5.0)  # type: ignore[misc]
        assert "Traceback" not in said or "KeyboardInterrupt" in said.rstrip().splitlines()[-1], said


# What surrounds it


@pytest.mark.parametrize("port", ["99999", "-5", "65536"])
def test_a_port_that_there_is_not(folder: Path, port: str) -> None:
    command = [sys.executable, "-P", "-m", "bough.cli", "serve", f"--port={port}", "--model", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (2, f"bough serve: --port must be 0 to 65535, got {port}\n")


def test_a_port_that_is_taken_is_told_before_the_model_is_loaded(figures: Callable[[str], None]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-P", "-m", "bough.cli", "serve", "--port", str(port), "--model", "/no/such/model"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        ended = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert ended.returncode == 4
    assert f"127.0.0.1:{port}" in ended.stderr and "loading" not in ended.stderr
    assert seconds < 2.0
    figures(f"a port that is taken: status 4 after {seconds:.2f} s of processor time")


def test_a_log_that_may_not_grow_stops_nothing(folder: Path, tmp_path: Path) -> None:
    """A file that is full after 4 KiB, for the server and its children, with a line for each request."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-P", "-m", "bough.cli", "serve", "--port", str(port), *options(folder)[:-1]]
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # noqa: E731
    log = tmp_path / "log"
    with log.open("w") as target, subprocess.Popen(command, stderr=target, preexec_fn=limit) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
                wait_until(lambda: _answers(http), 60.0)
                for _ in range(60):
                    assert http.post("/v1/completions", json={**BODY, "max_tokens": 1}).status_code == 200
                assert http.post("/v1/completions", json={**BODY, "max_tokens": 3, "response_format": FORM}).is_success
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()
    assert log.stat().st_size == 4096


def _answers(http: httpx.Client) -> bool:
    try:
        return http.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("redirect", ["2>/dev/full", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_cannot_be_written_do_not_matter(folder: Path, redirect: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve = f"{sys.executable} -P -m bough.cli serve --port {port} {' '.join(options(folder)[:-1])}"
    with subprocess.Popen(["sh", "-c", f"exec {serve} {redirect}"]) as process, contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        url = f"http://127.0.0.1:{port}"

        def up() -> bool:
            try:
                return httpx.get(f"{url}/readyz", timeout=10).status_code == 200
            except httpx.TransportError:
                assert process.poll() is None
                return False

        wait_until(up, 60.0)
        answers = [httpx.post(f"{url}/v1/completions", json={**BODY, "max_tokens": 2}, timeout=30) for _ in range(5)]
        assert {answer.status_code for answer in answers} == {200}
        process.terminate()
        assert process.wait(20) == 0


def test_a_log_that_nobody_reads_stops_nothing(folder: Path) -> None:
    reader, writer = os.pipe()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-P", "-m", "bough.cli", "serve", "--port", str(port), *options(folder)[:-1]]
    with subprocess.Popen(command, stderr=writer) as process, contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        os.close(writer)
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=30) as http:
            wait_until(lambda: _answers(http), 60.0)
            for _ in range(400):  # each a line of more than 200 bytes, in a pipe of 64 KiB
                assert http.post("/v1/completions", json={**BODY, "max_tokens": 1}).status_code == 200
        process.terminate()
        assert process.wait(20) == 0
    os.close(reader)


def test_more_connections_than_descriptors(folder: Path) -> None:
    limited = ServerProcess(*options(folder), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
    with limited as server:
        port = int(re.findall(r"\d+$", server.url)[0])
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(150)]
        time.sleep(0.5)
        for connection in silent:
            connection.close()
        wait_until(lambda: _serves(server), 15.0)


def test_a_thousand_connections_that_say_nothing_are_closed(folder: Path, figures: Callable[[str], None]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    many = min(4096, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (many, hard))
    try:
        with ServerProcess(*options(folder)) as server, contextlib.ExitStack() as stack:
            port = int(re.findall(r"\d+$", server.url)[0])
            began = time.monotonic()
            silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(1000)]
            slowest = 0.0
            while time.monotonic() < began + 8.0:
                asked = time.monotonic()
                assert complete(server, max_tokens=2).status_code == 200
                slowest = max(slowest, time.monotonic() - asked)
                time.sleep(0.2)
            for connection in silent:
                connection.settimeout(30.0)
                with contextlib.suppress(ConnectionError):
                    assert connection.recv(1) == b""
            closed_s = time.monotonic() - began
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert 9.0 < closed_s < 25.0 and slowest < 5.0
    figures(f"1,000 silent connections: closed after {closed_s:.1f} s, others served within {1e3 * slowest:.0f} ms")


def _serves(server: ServerProcess) -> bool:
    try:
        return complete(server, max_tokens=2).status_code == 200
    except httpx.TransportError:
        return False


def test_folders_that_cannot_be_used_do_not_matter(folder: Path) -> None:
    nowhere = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "BOUGH_CACHE", "TRITON_CACHE_DIR"), "/proc/nowhere")
    with ServerProcess(*options(folder), env={**os.environ, **nowhere}) as server:
        assert complete(server, max_tokens=3, response_format=FORM).status_code == 200
