"""The life of the process: ports, signals and exit codes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from bough.server.config import ServerConfig
from bough.server.serve import bind, serve

from .fake_client import FakeClient

PROGRAM = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("fake_client", sys.argv[1])
fake = importlib.util.module_from_spec(spec)
sys.modules["fake_client"] = fake
spec.loader.exec_module(fake)
from bough.server.config import ServerConfig
from bough.server.serve import serve
script = lambda _: fake.Script(["x"] * 30, delay_s=0.03)
sys.exit(serve(ServerConfig(port=int(sys.argv[2])), lambda: fake.FakeClient(script)))
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


def test_sigterm_finishes_what_runs_and_exits_zero(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    fake = Path(__file__).with_name("fake_client.py")
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", PROGRAM, str(fake), str(port)]
    with subprocess.Popen(command, env=environment, cwd=tmp_path) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(400):
                try:
                    httpx.get(f"{url}/readyz", timeout=5)
                    break
                except httpx.ConnectError:
                    time.sleep(0.05)
            body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True}
            with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=20) as response:
                lines = response.iter_lines()
                next(lines)
                process.send_signal(signal.SIGTERM)
                rest = list(lines)
            assert "data: [DONE]" in rest
            assert process.wait(10) == 0
        finally:
            process.kill()
