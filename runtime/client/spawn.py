"""Starts an engine's process: early, so that it loads its modules while who starts it loads its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import NamedTuple


class EngineProcess(NamedTuple):
    """A process that waits on `connection` to hear what to load; it ends when that is closed."""

    process: subprocess.Popen[bytes]
    connection: socket.socket


def spawn_engine() -> EngineProcess:
    """Starts the process, which the caller has to end."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-P", "-m", "bough.runtime.client.engine_process", str(theirs.fileno())]
        # Threads that spin while they wait take the cores from the server and its clients: see docs/decisions/0008.
        environment = {"OMP_WAIT_POLICY": "passive", **os.environ}
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment)
    return EngineProcess(process, ours)
