"""Starts an engine process early, so that it imports its modules while its parent imports its own."""

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
"""Makes an engine process write the stacks of its threads to standard error."""


class EngineProcess(NamedTuple):
    """A process that waits on `connection` for its configuration and ends when that is closed. `begun` is the time of
    its start, `crashed_at` that of the previous process's end, by the monotonic clock. `forked` is set in children of
    the process that it belongs to.
    """

    process: subprocess.Popen[bytes]
    connection: socket.socket
    begun: float
    crashed_at: float = -math.inf
    forked: bool = False


def spawn_engine() -> EngineProcess:
    """Starts the process, which the caller must end. Raises OSError: no process can be started."""
    begun = time.monotonic()
    ours, theirs = socket.socketpair()
    with theirs:
        process = start_child(
            f"{__package__}.engine_process",
            [str(theirs.fileno())],
            keep=HUB_TOKENS,
            # Threads that spin while waiting would take cores from the server and its clients: docs/decisions/0008.
            variables={"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "passive")},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
    return EngineProcess(process, ours, begun)
