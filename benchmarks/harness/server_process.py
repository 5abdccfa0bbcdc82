"""A bough server for a benchmark: a separate process on a free local port, and its counters."""

from __future__ import annotations

import contextlib
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
from typing import Any

import httpx

from ...runtime.protocol.errors import BoughError

_START_S = 180.0
_STOP_S = 30.0
# Counters as `/server_info` calls them.
_TOTALS = {f"{name}_tokens": f"{name}_tokens_total" for name in ("prompt", "cached", "computed", "generated")}
_TOTALS |= {f"{name}_s": f"{name}_seconds_total" for name in ("step", "forward", "mask", "sample")}
_TOTALS |= {"num_steps": "steps_total"}
_ANSWERS = re.compile(r'^bough_http_responses_total\{path="(/v1/[^"]*)",status="\d+"\} (\d+)$', re.MULTILINE)


@dataclass(frozen=True)
class Counters:
    """Counts of a server since its start, or between two moments."""

    num_requests: int = 0  # HTTP requests to the API
    prompt_tokens: int = 0  # of all generations; of these, `cached_tokens` were found in the prefix cache
    cached_tokens: int = 0
    computed_tokens: int = 0  # that went through the model
    generated_tokens: int = 0
    num_steps: int = 0  # forward passes
    # seconds in steps of the engine: of them `forward_s` in the model itself, `mask_s` waiting for constraints,
    # `sample_s` drawing tokens
    step_s: float = 0.0
    forward_s: float = 0.0
    mask_s: float = 0.0
    sample_s: float = 0.0
    # processor seconds of the process that speaks HTTP and tokenises; 0 where the system does not tell
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


class ServerProcess(contextlib.AbstractContextManager["ServerProcess"]):
    """A server that answers at `url`. `options` are those of `bough serve`; it ends with the `with` block.

    `variables` are added to its environment.

    Raises:
        BoughError: it did not start.
    """

    def __init__(self, options: Sequence[str] = (), variables: Mapping[str, str] | None = None) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  open as long as the process
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
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

    def counters(self) -> Counters:
        stats = self.info()["stats"]
        counted = {name: stats[total] for name, total in _TOTALS.items()}
        num_requests = count_answers(self._client.get("/metrics").text)
        front_cpu_s = 0.0
        if (path := Path(f"/proc/{self._process.pid}/stat")).exists():
            after_name = path.read_text().rpartition(")")[2].split()
            front_cpu_s = (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")
        return Counters(num_requests=num_requests, front_cpu_s=front_cpu_s, **counted)

    def flush(self) -> None:
        """Empties the prefix cache. Raises BoughError: something is still running."""
        if not self._client.post("/flush_cache").json()["flushed"]:
            raise BoughError("the server is running other requests: nothing can be measured")

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if self._client.get("/health").is_success:
                    return
            status = self._process.poll()
            if status is not None or time.monotonic() > deadline:
                self._log.seek(0)
                said = self._log.read().decode(errors="replace")[-2000:]
                late = f"was not ready within {_START_S:.0f} s"
                raise BoughError(f"the server {late if status is None else f'ended with status {status}'}:\n{said}")
            time.sleep(0.2)


def count_answers(metrics: str) -> int:
    """The answers to API requests that a page of metrics counts, but for questions about models."""
    return sum(int(count) for path, count in _ANSWERS.findall(metrics) if not path.startswith("/v1/models"))
