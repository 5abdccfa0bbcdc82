"""Facts about this machine, without asking torch: free memory, cores, and whether a GPU may be there."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

_UNKNOWN = 4 << 30
"""Bytes, on a system that does not tell: what any machine that runs a language model has."""

_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Files of the drivers of GPUs that torch computes on: NVIDIA's, the same through Windows, and AMD's."""


def free_memory() -> int:
    """Bytes that can be taken."""
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return _UNKNOWN


def may_have_gpu() -> bool:
    """False if torch would find none, so that it need not be asked."""
    if sys.platform == "linux":
        return any(os.path.exists(driver) for driver in _DRIVERS)
    return sys.platform != "darwin"


def num_threads() -> int:
    """Returns how many threads should compute: OMP_NUM_THREADS, or one for each core that this process may use."""
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isdigit() and int(named) > 0:
        return int(named)
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    allowed = os.sched_getaffinity(0)
    return max(1, min(len({_core(processor) for processor in allowed}), _quota()))


def _core(processor: int) -> str:
    """Returns a key that the processors of one core share."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{processor}/topology/core_cpus_list").read_text()
    except OSError:
        return str(processor)


def _quota() -> int:
    """Processors' worth of time that a container may take."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return math.ceil(int(quota) / int(period))
    except (OSError, ValueError):  # none, or "max"
        return sys.maxsize
