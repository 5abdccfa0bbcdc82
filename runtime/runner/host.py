"""Facts about this machine, without asking torch: cores, and whether a GPU may be there."""

from __future__ import annotations

import glob
import math
import os
import sys
from pathlib import Path

_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Files of the drivers of GPUs that torch computes on: NVIDIA's, the same through Windows, and AMD's."""


_GPUS = ("/dev/nvidia[0-9]*", "/proc/driver/nvidia/gpus/*")


def may_have_gpu() -> bool:
    """False if torch would find none, so that it need not be asked."""
    if sys.platform == "linux":
        return any(os.path.exists(driver) for driver in _DRIVERS)
    return sys.platform != "darwin"


def hidden_gpu() -> str | None:
    """Returns a file of the driver that tells of an NVIDIA GPU; None if none does, or if the user hides it."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1", "NoDevFiles"):
        return None
    found = (path for pattern in _GPUS for path in sorted(glob.glob(pattern)))
    return next(found, None)


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
