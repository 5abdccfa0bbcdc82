"""A script may end while its engine runs: the process ends in order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ...support.tiny_model import write_tiny_model

_SCRIPT = """
import sys, threading, time
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.client.local import LocalClient
from bough.runtime.protocol.request import Request
from bough.runtime.protocol.sampling_params import SamplingParams

client = LocalClient.load(EngineConfig(model=sys.argv[1], num_pages=4000))
begun = threading.Event()

def stream():
    for output in client.stream(Request(id="a", prompt=(1, 2, 3), sampling=SamplingParams(ignore_eos=True))):
        begun.set()

threading.Thread(target=stream, daemon=True).start()
begun.wait(30)
print("leaving", flush=True)
"""


def test_a_script_ends_in_order_while_its_engine_runs(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    for _ in range(3):
        command = [sys.executable, "-P", "-c", _SCRIPT, str(tmp_path)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (ended.returncode, ended.stdout) == (0, "leaving\n"), ended.stderr
        assert "terminate" not in ended.stderr
