"""A bough server for a benchmark: a process of its own on a free port of this machine, and what it counts."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import httpx

_START_S = 180.0
_STOP_S = 30.0
_ANSWERS = re.compile(r'^bough_http_responses_total\{path="(/v1/[^"]*)",status="\d+"\} (\d+)$', re.MULTILINE)


@dataclass(frozen=True)
class Counters:
    """Counts of a server since its start, or between two moments.

    num_requests     HTTP requests to the API
    prompt_tokens    of all generations; of these, `cached_tokens` were found in the prefix cache
    computed_tokens  that went through the model
    num_steps        forward passes
    step_s           seconds in steps of the engine: of them `forward_s` in the model itself, `mask_s` waiting for
                     constraints, `sample_s` drawing tokens
    front_cpu_s      processor seconds of the process that speaks HTTP and tokenises; 0 where the system does not tell
    """

    num_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    num_steps: int = 0
    step_s: float = 0.0
    forward_s: float = 0.0
    mask_s: float = 0.0
    sample_s: float = 0.0
    front_cpu_s: float = 0.0

    def __sub__(self, other: Counters) -> Counters:
        return Counters(**{f.name: getattr(self, f.name) - getattr(other, f.name) for f in fields(self)})

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def computed_prompt_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens

    @property
    def mean_batch(self) -> float:
        """Tokens that went through the model at once."""
        return self.computed_tokens / self.num_steps if self.num_steps else 0.0


class ServerProcess:
    """A server that answers at `url`. `options` are those of `bough serve`; it ends with the `with` block.

    `variables` are added to its environment.

    Raises:
        RuntimeError: it did not start.
    """

    def __init__(self, options: Sequence[str] = (), variables: Mapping[str, str] | None = None) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  open as long as the process
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        # -P: the folder that this is run in must not be on the path, or its kernels/ hides another package.
        command = [sys.executable, "-P", "-m", "bough.cli", "serve", "--port", str(port), *options]
        environment = {**os.environ, **(variables or {})}
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, env=environment)
        self._client = httpx.Client(base_url=self.url, timeout=60.0, trust_env=False)
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        self.model: str = self._client.get("/v1/models").json()["data"][0]["id"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._client.close()
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def info(self) -> dict[str, Any]:
        """Returns what `/server_info` answers."""
        answer: dict[str, Any] = self._client.get("/server_info").json()
        return answer

    def running(self) -> int:
        """Generations that are computed just now."""
        return int(self.info()["stats"]["running"])

    def counters(self) -> Counters:
        stats = self.info()["stats"]
        return Counters(
            num_requests=count_answers(self._client.get("/metrics").text),
            prompt_tokens=stats["prompt_tokens_total"],
            cached_tokens=stats["cached_tokens_total"],
            computed_tokens=stats["computed_tokens_total"],
            generated_tokens=stats["generated_tokens_total"],
            num_steps=stats["steps_total"],
            step_s=stats["step_seconds_total"],
            forward_s=stats["forward_seconds_total"],
            mask_s=stats["mask_seconds_total"],
            sample_s=stats["sample_seconds_total"],
            front_cpu_s=_cpu_s(self._process.pid),
        )

    def flush(self) -> None:
        """Empties the prefix cache.

        Raises:
            RuntimeError: something is still running.
        """
        if not self._client.post("/flush_cache").json()["flushed"]:
            raise RuntimeError("the server is running other requests: nothing can be measured")

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_S
        while not self._answers():
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with status {self._process.returncode}:\n{self._said()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"the server was not ready within {_START_S:.0f} s:\n{self._said()}")
            time.sleep(0.2)

    def _answers(self) -> bool:
        try:
            return self._client.get("/health").is_success
        except httpx.HTTPError:
            return False

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-2000:]


def count_answers(metrics: str) -> int:
    """The answers to API requests that a page of metrics counts, but for questions about models."""
    return sum(int(count) for path, count in _ANSWERS.findall(metrics) if not path.startswith("/v1/models"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _cpu_s(pid: int) -> float:
    path = Path(f"/proc/{pid}/stat")
    if not path.exists():
        return 0.0
    after_name = path.read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")
