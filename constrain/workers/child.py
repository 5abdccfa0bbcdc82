"""Child processes: without secrets in their environment, and gone when their parent is."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

_SECRET = re.compile(
    r"(^|_)(API_?KEYS?|ACCESS_?KEY|PRIVATE_?KEY|TOKENS?|SECRETS?|PASSWORDS?|PASSWD|CREDENTIALS?)(_|$)", re.IGNORECASE
)
_PR_SET_PDEATHSIG = 1


def child_environment(*, keep: Collection[str] = ()) -> dict[str, str]:
    """This process's environment without variables whose names say that they are secret, but for those in `keep`."""
    return {name: value for name, value in os.environ.items() if name in keep or _SECRET.search(name) is None}


def start_child(
    module: str,
    arguments: Sequence[str] = (),
    *,
    keep: Collection[str] = (),
    variables: Mapping[str, str] | None = None,
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Starts `python -m module PARENT arguments...`, which is to call `die_with_parent(PARENT)`.

    Its environment is that of `child_environment`, with `variables`. `options` are those of `subprocess.Popen`. No code
    of this process runs between fork and exec, whatever its threads hold. Raises OSError: there is no process, or no
    thread, to be had.
    """
    command = [sys.executable, "-P", "-m", module, str(os.getpid()), *arguments]
    environment = {**child_environment(keep=keep), **(variables or {})}
    started: queue.SimpleQueue[subprocess.Popen[bytes] | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            process = subprocess.Popen(command, env=environment, **options)
        except Exception as error:  # noqa: BLE001  raised where the child is asked for
            started.put(error)
            return
        started.put(process)
        if sys.platform == "linux":
            # It takes the thread that started a child for its parent: this one stays as long as the child.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    try:
        threading.Thread(target=run, name="bough-parent", daemon=True).start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from error
    outcome = started.get()
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def die_with_parent(parent: int) -> None:
    """Has this process killed when `parent` ends, even while it is stopped. Interrupts and requests to end that a
    terminal or a supervisor sends to the whole group are left to the parent, which ends its children in order.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before
        sys.exit(1)
