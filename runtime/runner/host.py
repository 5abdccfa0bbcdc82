"""Facts about this machine, without torch: its cores, and the possible presence of a GPU."""

from __future__ import annotations

import glob
import math
import os
import sys
from pathlib import Path

_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Device files of GPU drivers that torch supports: NVIDIA's, NVIDIA's under Windows, and AMD's."""


_GPUS = ("/dev/nvidia[0-9]*", "/proc/driver/nvidia/gpus/*")


def may_have_gpu() -> bool:
    """Returns False if torch would certainly find no GPU, so that it need not be imported."""
    if sys.platform == "linux":
        return any(os.path.exists(driver) for driver in _DRIVERS)
    return sys.platform != "darwin"


def hidden_gpu() -> str | None:
    """Returns a driver's file that indicates an NVIDIA GPU; None if there is none, or if the user hides it."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1", "NoDevFiles"):
        return None
    found = (path for pattern in _GPUS for path in sorted(glob.glob(pattern)))
    return next(found, None)


def num_threads() -> int:
    """Returns the number of compute threads: OMP_NUM_THREADS, or one for each core that this process may use."""
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
    """Returns the number of processors whose time a container may use."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return math.ceil(int(quota) / int(period))
    except (OSError, ValueError):  # none, or "max"
        return sys.maxsize
