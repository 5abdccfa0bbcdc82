"""A sanitized build of the CPU library ends the process at what it is there to find."""

from __future__ import annotations

import subprocess
import sys

import pytest

from . import sanitized

LOAD = "from bough.kernels.native.library import *; import ctypes, threading; library = load_library()"
FAULTS: dict[str, tuple[sanitized.Kind, str, str]] = {
    "memory": (
        "address",
        "heap-buffer-overflow",
        "tiles = ctypes.create_string_buffer(100)\n"
        "weight = Weight(0, 8, 32, 0, ctypes.addressof(tiles), None)\n"
        "rows, numbers = (ctypes.c_int64 * 1)(0), (ctypes.c_float * 32)()\n"
        "library.read_rows(ctypes.addressof(weight), ctypes.addressof(rows), 1, ctypes.addressof(numbers))",
    ),
    "overflow": ("address", "signed integer overflow", "library.weight_bytes(0, 2**31 - 1, 32)"),
    "race": (
        "thread",
        "data race",
        "tiles, numbers = ctypes.create_string_buffer(1 << 16), (ctypes.c_float * 320_000)()\n"
        "weight, rows = Weight(0, 8, 32, 0, ctypes.addressof(tiles), None), (ctypes.c_int64 * 10_000)()\n"
        "read = lambda: [library.read_rows(ctypes.addressof(weight), ctypes.addressof(rows), 10_000,"
        " ctypes.addressof(numbers)) for _ in range(50)]\n"
        "threads = [threading.Thread(target=read) for _ in range(2)]\n"
        "[thread.start() for thread in threads], [thread.join() for thread in threads]",
    ),
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str) -> None:
    kind, message, code = FAULTS[name]
    if (why := sanitized.missing(kind)) is not None:
        pytest.skip(why)
    command = [sys.executable, "-P", "-c", f"{LOAD}\n{code}"]
    environment = sanitized.environment(kind)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == sanitized.EXIT_CODE and message in done.stderr, done.stderr[-3000:]
    command[-1] = f"{LOAD}\nprint(library.lanes)"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "") and int(done.stdout) > 0
