"""Threads that need decoders of the same types for the first time at once, in processes that have made none."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
from bough.runtime.protocol.program import Program
{imports}
DATA = b'{{"id": "p", "ops": [{{"type": "text", "branch": 0, "parts": ["x"]}}]}}'
sys.setswitchinterval(1e-6)
together = threading.Barrier(8)
def decode_all():
    together.wait()
    for _ in range(20):
        assert {decoded}.id == "p"
threads = [threading.Thread(target=decode_all) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.parametrize(
    ("imports", "decoded"),
    [
        ("from bough.constrain.workers.decoders import json_decoder", "json_decoder(Program).decode(DATA)"),
        ("from bough.server.http.connection import decode", "decode(DATA, Program)"),
    ],
    ids=["decoders", "bodies"],
)
def test_types_that_threads_decode_for_the_first_time_at_once(imports: str, decoded: str) -> None:
    command = [sys.executable, "-P", "-c", PROGRAM.format(imports=imports, decoded=decoded)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(6)]
    for process in processes:
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
