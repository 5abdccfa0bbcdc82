"""The life of the process: ports, signals and exit codes."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from bough.runtime.protocol.counters import EngineStats
from bough.server.app import DrainingServer
from bough.server.config import ServerConfig
from bough.server.http.connection import Lifecycle
from bough.server.serve import bind, serve

from .fake_client import FakeClient, Script

PROGRAM = """
import importlib.util, sys, time
spec = importlib.util.spec_from_file_location("fake_client", sys.argv[1])
fake = importlib.util.module_from_spec(spec)
sys.modules["fake_client"] = fake
spec.loader.exec_module(fake)
from bough.server.config import ServerConfig
from bough.server.serve import serve
script = lambda _: fake.Script(["x"] * 100, delay_s=0.03)  # longer than a busy machine takes to ask meanwhile
class Client(fake.FakeClient):
    def stats(self):
        time.sleep(60)
client = Client(script)
encode = client.tokenizer.encode_prompt
client.tokenizer.encode_prompt = lambda text, **settings: time.sleep(60 * ("stuck" in text)) or encode(text, **settings)
sys.exit(serve(ServerConfig(port=int(sys.argv[2]), drain_timeout_s=float(sys.argv[3])), lambda: client))
"""


SIGNALLED = """
import os, signal, sys
from bough.server.config import ServerConfig
from bough.server.serve import serve
from bough.tests.server.fake_client import FakeClient

def announce(address):
    print("listening", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

sys.exit(serve(ServerConfig(port=0), FakeClient, announce))
"""


def never() -> FakeClient:
    raise AssertionError("the engine was started")


def test_a_taken_port_is_found_before_the_engine_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with bind("127.0.0.1", 0) as taken:
        assert serve(ServerConfig(port=taken.getsockname()[1]), never) == 4
    assert "cannot listen on 127.0.0.1" in capsys.readouterr().err


def test_an_open_address_without_key_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(ServerConfig(host="0.0.0.0", port=0), never) == 2
    assert "no API key" in capsys.readouterr().err


def test_a_dead_engine_ends_with_its_own_code() -> None:
    client = FakeClient(alive=False)
    assert serve(ServerConfig(port=0), lambda: client) == 5
    assert client.closed


@contextmanager
def server_process(folder: Path, *, drain_timeout_s: float) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server of PROGRAM, which is ready, and its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    fake = Path(__file__).with_name("fake_client.py")
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", PROGRAM, str(fake), str(port), str(drain_timeout_s)]
    with subprocess.Popen(command, env=environment, cwd=folder) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(400):
                if _outcome(f"{url}/readyz") == 200:
                    break
                time.sleep(0.05)
            yield process, url
        finally:
            process.kill()


def test_a_server_that_says_that_it_listens_handles_signals() -> None:
    ended = subprocess.run([sys.executable, "-P", "-c", SIGNALLED], capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, b"listening\n"), ended.stderr


def test_sigterm_finishes_what_runs_and_exits_zero(tmp_path: Path) -> None:
    with server_process(tmp_path, drain_timeout_s=30.0) as (process, url):
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=20) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            refused = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=5)  # over a new connection
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
            assert refused.headers["retry-after"] and refused.headers["connection"] == "close"
            assert httpx.get(f"{url}/livez", timeout=5).status_code == 200
            rest = list(lines)
        assert "data: [DONE]" in rest
        assert process.wait(10) == 0


def test_work_that_is_stuck_on_a_thread_does_not_outlive_the_drain(tmp_path: Path) -> None:
    """Neither that of a caller nor the question for the engine's counters."""
    with server_process(tmp_path, drain_timeout_s=0.5) as (process, url):
        body = {"model": "tiny", "prompt": "stuck"}
        asks = [threading.Thread(target=_outcome, args=(f"{url}/metrics",))]
        asks.append(threading.Thread(target=_outcome, args=(f"{url}/v1/completions", body)))
        for thread in asks:
            thread.start()
        time.sleep(0.5)
        assert all(thread.is_alive() for thread in asks)
        process.send_signal(signal.SIGTERM)
        assert process.wait(8.0) == 0
        for thread in asks:
            thread.join(5.0)


class StuckClient(FakeClient):
    """Its generations do not end, and its counters do not come before it is closed."""

    def __init__(self) -> None:
        super().__init__(lambda _: Script(["x"] * 10_000, delay_s=0.01))
        self.ended = threading.Event()

    def stats(self) -> EngineStats:
        self.ended.wait(60.0)
        return super().stats()

    def close(self, *, at_once: bool = False) -> None:
        super().close()
        self.ended.set()


def test_the_end_is_bounded_beside_what_never_ends() -> None:
    client = StuckClient()
    config = ServerConfig(port=0, drain_timeout_s=0.5)
    with bind(config.host, config.port) as listener:
        server = DrainingServer(config, client, Lifecycle())
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        port = listener.getsockname()[1]
        body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
        silent = socket.create_connection(("127.0.0.1", port))  # takes nothing of its answer
        silent.sendall(f"{head}content-type: application/json\r\n\r\n{body}".encode())
        asks = threading.Thread(target=lambda: _outcome(f"http://127.0.0.1:{port}/metrics"))
        asks.start()
        time.sleep(0.3)
        assert client.open_ids
        began = time.monotonic()
        server.handle_exit(signal.SIGTERM, None)
        thread.join(20.0)
        assert not thread.is_alive()
        assert 0.4 < time.monotonic() - began < 5.0
        assert client.closed and not client.open_ids
        silent.close()
        asks.join(5.0)


def test_an_answer_that_is_cut_off_at_the_end_is_a_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that reads nothing, and a question that the engine does not answer."""
    monkeypatch.setattr("bough.server.app._GRACE_S", 1.0)
    client = StuckClient()
    client.script = lambda _: Script(["x" * 2_000_000] * 1000, delay_s=0.05)  # soon more than a connection holds
    config = ServerConfig(port=0, drain_timeout_s=0.3)
    body = json.dumps({"model": "tiny", "prompt": "hi", "stream": True})
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    with bind(config.host, config.port) as listener, socket.socket() as silent:
        server = DrainingServer(config, client, Lifecycle())
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.connect(("127.0.0.1", listener.getsockname()[1]))
        silent.sendall(f"{head}content-type: application/json\r\n\r\n{body}".encode())
        time.sleep(0.5)
        assert client.open_ids
        server.handle_exit(signal.SIGTERM, None)
        thread.join(20.0)
        assert not thread.is_alive()
    assert not [record for record in caplog.records if record.exc_info]
    assert [record.message for record in caplog.records if "was cut off" in record.message]


def test_a_handler_of_signals_does_not_log() -> None:
    """It may interrupt the thread that holds the log's lock."""
    lifecycle = Lifecycle()
    server = DrainingServer(ServerConfig(port=0), FakeClient(), lifecycle)
    said: list[str] = []

    class Log(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logger, handler = logging.getLogger("bough.server"), Log()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel("INFO")
    try:
        server.handle_exit(signal.SIGTERM, None)
        assert not said and lifecycle.draining
        for _ in range(2):
            asyncio.run(server.on_tick(1))
        assert said == ["SIGTERM: finishing running requests; a second signal exits at once"]
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@pytest.mark.parametrize("reads", [True, False])
def test_a_regular_end_logs_no_error(caplog: pytest.LogCaptureFixture, reads: bool) -> None:
    """Beside clients that do not read, keep their connection, or wait for what does not come."""
    client = StuckClient()
    client.script = lambda _: Script(["x" * 100_000] * (10 if reads else 400), delay_s=0.001)
    config = ServerConfig(port=0, drain_timeout_s=0.3, request_log=False)
    with bind(config.host, config.port) as listener, ExitStack() as stack:
        server = DrainingServer(config, client, Lifecycle())
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        asks = threading.Thread(target=_outcome, args=(f"{url}/metrics",))
        asks.start()
        for stream in (True, False):
            silent = stack.enter_context(socket.socket())
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.connect(("127.0.0.1", listener.getsockname()[1]))
            body = json.dumps({"model": "tiny", "prompt": "hi", "stream": stream})
            head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
            silent.sendall(f"{head}content-type: application/json\r\n\r\n{body}".encode())
        time.sleep(1.5)
        server.handle_exit(signal.SIGTERM, None)
        thread.join(20.0)
        assert not thread.is_alive()
        asks.join(5.0)
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


def _outcome(url: str, body: dict[str, str] | None = None) -> int:
    try:
        return httpx.request("GET" if body is None else "POST", url, json=body, timeout=10).status_code
    except httpx.HTTPError:
        return 0


def test_an_idle_server_stays_for_its_delay_and_says_that_it_ends() -> None:
    config = ServerConfig(port=0, drain_delay_s=3.0)
    with bind(config.host, config.port) as listener:
        server = DrainingServer(config, FakeClient(), Lifecycle())
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert _outcome(f"{url}/readyz") == 200
        began = time.monotonic()
        server.handle_exit(signal.SIGTERM, None)
        while time.monotonic() < began + 0.7:
            assert (_outcome(f"{url}/readyz"), _outcome(f"{url}/livez")) == (503, 200)
        thread.join(10.0)
        assert not thread.is_alive() and time.monotonic() - began > 2.9


def test_idle_servers_end_at_once() -> None:
    config = ServerConfig(port=0, drain_timeout_s=30.0)
    with bind(config.host, config.port) as listener:
        server = DrainingServer(config, FakeClient(), Lifecycle())
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        with httpx.Client() as idle:  # its connection stays open
            assert idle.get(f"http://127.0.0.1:{listener.getsockname()[1]}/livez", timeout=5).status_code == 200
            server.handle_exit(signal.SIGTERM, None)
            thread.join(3.0)
        assert not thread.is_alive()
