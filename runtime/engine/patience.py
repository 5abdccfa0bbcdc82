"""Time that the engine's thread may spend on what other threads can do as well, over a step."""

from __future__ import annotations

import time


class Patience:
    """Time for several pieces of work, all together."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds that are left; 0 when none are."""
        return max(self._end - time.monotonic(), 0.0)
