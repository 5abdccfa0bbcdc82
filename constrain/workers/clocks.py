"""Clocks of the processor time of this or another thread or process, so that load on the machine does not count."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import partial

Clock = Callable[[], float]
"""Returns seconds since a fixed moment."""


def clock_of_this_thread() -> Clock:
    """Returns a clock that any thread may read while this one lives; the wall clock if the system has none."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic
    return partial(time.clock_gettime, time.pthread_getcpuclockid(threading.get_ident()))


def clock_of_process(process_id: int) -> Clock:
    """Returns a clock that may be read while the process lives; the wall clock if the system has none."""
    if sys.platform != "linux":
        return time.monotonic
    return partial(time.clock_gettime, (~process_id << 3) | 2)  # as clock_getcpuclockid(3) defines it
