"""Promise: it is quickly there, and costs nothing while it has nothing to do."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from .server_process import ServerProcess

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.alone]

LOAD = """
import json, time
from bough.runtime.client.llm import LLM
from bough.runtime.protocol.sampling_params import SamplingParams
llm = LLM()
ready = time.time()
llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
print(json.dumps([ready, time.time()]))
"""
IMPORT = "import time; started = time.perf_counter(); import bough; print(time.perf_counter() - started)"

MODEL = "smollm2-135m"
BUSY = 6.0
"""Factor by which things may take longer where the machine is shared, as it is when all tests run."""


def python(program: str) -> str:
    return subprocess.run([sys.executable, "-P", "-c", program], check=True, capture_output=True, text=True).stdout


def test_the_import_is_quick(full: bool, figures: Callable[[str], None]) -> None:
    python(IMPORT)
    best = min(float(python(IMPORT)) for _ in range(5))
    figures(f"import bough: {best:.3f} s (best of 5)")
    assert best < 0.3 * (1 if full else BUSY)


def test_the_default_model_is_loaded_quickly(full: bool, figures: Callable[[str], None]) -> None:
    runs = []
    for _ in range(3 if full else 1):
        started = time.time()
        runs.append([moment - started for moment in json.loads(python(LOAD))])
    ready, first = min(runs)
    figures(f"from nothing to a loaded model: {ready:.2f} s; to the first token: {first:.2f} s (best of {len(runs)})")
    assert ready < 5.0 * (1 if full else BUSY)


def test_the_first_token_comes_at_once(full: bool, server: ServerProcess, figures: Callable[[str], None]) -> None:
    times = []
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        for number in range(5):
            messages: list[Any] = [{"role": "user", "content": f"{number} is my number. Why is the sky blue?"}]
            started = time.perf_counter()
            with client.chat.completions.create(model=MODEL, messages=messages, max_tokens=4, stream=True) as stream:
                next(chunk for chunk in stream if chunk.choices and chunk.choices[0].delta.content)
                times.append(time.perf_counter() - started)
    median = sorted(times)[2]
    figures(f"first token of a chat: {median:.3f} s (median of 5), the server ready after {server.ready_s:.2f} s")
    assert median < 1.0 * (1 if full else BUSY)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processor time is read from /proc")
def test_an_idle_server_sleeps(full: bool, server: ServerProcess, figures: Callable[[str], None]) -> None:
    server.wait_until(lambda metrics: metrics["bough_running"] == metrics["bough_waiting"] == 0, timeout_s=10)

    def busy(interval_s: float) -> float:
        before = server.cpu_seconds()
        time.sleep(interval_s)
        return (server.cpu_seconds() - before) / interval_s

    # After its first quiet second it warms up and prepares for the next requests, once.
    assert any(busy(2.0) < 0.05 for _ in range(15)), "it is still busy half a minute after its last request"
    interval_s = 30.0 if full else 5.0
    share = busy(interval_s)
    figures(f"an idle server takes {share:.2%} of a core over {interval_s:.0f} s")
    assert share < 0.02
