"""A `bough serve` process on this machine, what it says in /metrics, and what it costs."""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

START_TIMEOUT_S = 120.0

SERVE = (sys.executable, "-P", "-m", "bough.cli", "serve", "--port", "0")


class ServerProcess:
    """Started with a free port; ready when made. Use as a context manager. `popen` are options of subprocess.Popen;
    `command` may be another program that serves.

    ready_s   seconds from the start of the process to the first request that it would take
    """

    def __init__(self, *options: str, command: Sequence[str] = SERVE, **popen: Any) -> None:
        command = [*command, *options]
        started = time.perf_counter()
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **popen)
        self.lines: list[str] = []
        self._urls: queue.SimpleQueue[str] = queue.SimpleQueue()  # an empty one at its end
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = self._wait_for_url()
        if not self.url:
            self.stop()
            raise RuntimeError("the server did not start:\n" + "".join(self.lines))
        self.ready_s = time.perf_counter() - started

    def _wait_for_url(self) -> str:
        try:
            return self._urls.get(timeout=START_TIMEOUT_S)
        except queue.Empty:
            return ""

    def _read(self) -> None:
        """Reads on to the end, so that the server never waits for its output to be read."""
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.lines.append(line)
                if (found := re.search(r"listening on (http://\S+)", line)) is not None:
                    self._urls.put(found[1])
        self._urls.put("")

    def metrics(self) -> dict[str, float]:
        """Returns the samples of /metrics by name, labels included."""
        lines = httpx.get(f"{self.url}/metrics", timeout=30).raise_for_status().text.splitlines()
        samples = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def wait_until(self, condition: Callable[[dict[str, float]], bool], timeout_s: float) -> float:
        """Seconds until /metrics meets the condition; raises TimeoutError."""
        started = time.perf_counter()
        while not condition(found := self.metrics()):
            if time.perf_counter() - started > timeout_s:
                busy = {name: value for name, value in found.items() if re.search("running|waiting|pages", name)}
                raise TimeoutError(f"not within {timeout_s} s: {busy}")
            time.sleep(0.02)
        return time.perf_counter() - started

    def cpu_seconds(self) -> float:
        """CPU time of the server and the engine's process since they began. Linux only."""
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            if self.process.pid in (int(stat.parent.name), int(fields[1])):
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def stop(self) -> int:
        """Ends the server and returns its exit status."""
        self.process.terminate()
        try:
            return self.process.wait(timeout=60)
        finally:
            self.process.kill()
            self._reader.join(timeout=10)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
