"""Time that other threads wait for the interpreter while an engine decodes, seen by one that sleeps and looks up.

A gap between two looks is bounded from above by what the engine's thread computed in it: what is longer was the doing
of the machine, or of other processes. The switch interval is the one that loading an engine sets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

SLEEP_S = 50e-6


@dataclass(frozen=True)
class Waits:
    """Milliseconds: gaps as seen, and as much of each as the watched thread computed in it."""

    num_looks: int
    seen_p999: float
    seen_max: float
    held_p999: float
    held_max: float

    def line(self) -> str:
        return (
            f"{self.num_looks} looks; gaps p99.9 {self.seen_p999:.2f} ms, longest {self.seen_max:.2f} ms; of which the "
            f"engine's thread computed p99.9 {self.held_p999:.2f} ms, most {self.held_max:.2f} ms"
        )


def measure(work: Callable[[], None]) -> Waits:
    """Runs `work` on this thread, watched by another."""
    clock = time.pthread_getcpuclockid(threading.get_ident())
    looks: list[tuple[float, float]] = []
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            looks.append((time.perf_counter(), time.clock_gettime(clock)))
            time.sleep(SLEEP_S)

    watcher = threading.Thread(target=watch, name="bough-watch", daemon=True)
    watcher.start()
    try:
        work()
    finally:
        over.set()
        watcher.join()
    wall, computed = (1e3 * np.diff(np.array(column)) for column in zip(*looks, strict=True))
    held = np.minimum(wall, computed)
    return Waits(
        len(looks),
        float(np.percentile(wall, 99.9)),
        float(wall.max()),
        float(np.percentile(held, 99.9)),
        float(held.max()),
    )
