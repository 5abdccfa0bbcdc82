"""Promise: whatever is asked of it, it does as much as it can, says no at once, and is well again soon."""

from __future__ import annotations

import asyncio
import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bough.benchmarks.harness.report import percentile

from ...support.tiny_model import write_tiny_model
from .overload import RECOVERY_S, OfferedLoad, Overload, OverloadReport, Target
from .resources import family, resident

pytestmark = [pytest.mark.slow, pytest.mark.alone]

SEATS, WAITING, STEP_S, TOKENS = 4, 8, 0.02, 25
"""Eight answers a second, each of half a second: the engine sleeps most of the time, so others do not slow it down."""

GOODPUT = 0.95
REFUSAL_S = 0.02
BUSY = 20
"""Factor by which refusals may take longer where the machine is shared, as it is when all tests run."""

GROWTH_BYTES = 24 << 20
"""Memory that may come with the first overload: connections, threads, buffers."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Iterator[Target]:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    script = Path(__file__).with_name("paced_server.py")
    command = [sys.executable, "-P", str(script), str(folder), str(SEATS), str(WAITING), str(STEP_S)]
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    urls: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read(process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            if (found := re.search(r"listening on (http://\S+)", line)) is not None:
                urls.put(found[1])
        urls.put("")

    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        reader = threading.Thread(target=read, args=(process,))
        reader.start()
        try:
            url = urls.get(timeout=120)
            assert url, "it did not start"
            yield Target(url, "fake", lambda: resident(family(process.pid)))
        finally:
            process.terminate()
            process.wait(60)
            reader.join(10)


def test_overload(target: Target, full: bool, figures: Callable[[str], None]) -> None:
    factors, seconds = ((0.5, 1.0, 2.0, 10.0), 60.0) if full else ((0.25, 2.0, 10.0), 3.0)
    known = SEATS / (TOKENS * STEP_S)
    overload = Overload(target, OfferedLoad(SEATS, TOKENS))
    report: OverloadReport = asyncio.run(overload.run(factors, seconds, print, capacity=None if full else known))
    light, most, after = report.phases[0], report.phases[-2], report.phases[-1]
    refusals_s = percentile(most.refusal_s, 99)
    figures(
        f"capacity {report.capacity:.1f} requests/s; goodput at 2x {report.goodput_share(2.0):.1%}, at 10x "
        f"{report.goodput_share(10.0):.1%}, {most.mean_batch:.2f} of {SEATS} seats taken; {most.num_refused} refusals, "
        f"p50 {1e3 * percentile(most.refusal_s, 50):.1f} ms, p99 {1e3 * refusals_s:.1f} ms; first token p50 "
        f"{1e3 * light.median_first_s():.0f} ms before, {1e3 * after.median_first_s(RECOVERY_S):.0f} ms "
        f"{RECOVERY_S:.0f} s after; {(most.resident_bytes - light.resident_bytes) / 2**20:+.1f} MiB"
    )
    assert report.capacity < 1.01 * known
    assert sum(phase.num_failed for phase in report.phases) == 0
    for phase in report.phases:
        if phase.factor >= 2:
            assert phase.num_refused > 0
            assert phase.mean_batch >= GOODPUT * SEATS  # how long a step takes is up to who shares the machine
            assert not full or phase.goodput >= GOODPUT * report.tokens_per_s
    assert refusals_s < REFUSAL_S * (1 if full else BUSY)
    assert after.median_first_s(RECOVERY_S) < 2 * light.median_first_s() + (STEP_S if full else TOKENS * STEP_S / 2)
    assert most.resident_bytes - light.resident_bytes < GROWTH_BYTES
