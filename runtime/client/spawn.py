"""Starts an engine's process: early, so that it loads its modules while who starts it loads its own."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import time
from typing import NamedTuple

from ...constrain.workers.child import start_child

HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Secrets that loading a model may need."""


DUMP_SIGNAL = signal.SIGUSR2
"""Has an engine's process write to standard error where its threads are."""


class EngineProcess(NamedTuple):
    """A process that waits on `connection` to hear what to load; it ends when that is closed. `begun` is when it was
    started, and `crashed_at` when the one before it ended, by the monotonic clock. `forked` is set in children of the
    process that it belongs to.
    """

    process: subprocess.Popen[bytes]
    connection: socket.socket
    begun: float
    crashed_at: float = -math.inf
    forked: bool = False


def spawn_engine() -> EngineProcess:
    """Starts the process, which the caller has to end. Raises OSError: no process can be started."""
    begun = time.monotonic()
    ours, theirs = socket.socketpair()
    with theirs:
        process = start_child(
            f"{__package__}.engine_process",
            [str(theirs.fileno())],
            keep=HUB_TOKENS,
            # Threads that spin while they wait take the cores from the server and its clients: docs/decisions/0008.
            variables={"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "passive")},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
    return EngineProcess(process, ours, begun)
