"""Clocks of processor time, of another thread or process, too: a busy machine is no fault of what it computes."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import partial

Clock = Callable[[], float]
"""Seconds since some moment."""


def clock_of_this_thread() -> Clock:
    """A clock that any thread may read while this one lives; that of the wall where the system has none."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic
    return partial(time.clock_gettime, time.pthread_getcpuclockid(threading.get_ident()))


def clock_of_process(process_id: int) -> Clock:
    """A clock that may be read while the process lives; that of the wall where the system has none."""
    if sys.platform != "linux":
        return time.monotonic
    return partial(time.clock_gettime, (~process_id << 3) | 2)  # as clock_getcpuclockid(3) has it
