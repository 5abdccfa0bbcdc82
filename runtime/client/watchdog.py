"""Watchdog: derives an engine process's progress from its heartbeats."""

from __future__ import annotations

import math

BEAT_S = 1.0
"""Time between two heartbeats."""

TICK_S = 0.5
"""Time between two checks of the heartbeats."""

SEEN_S = 3.0
"""Time without progress after which an engine counts as stuck."""

STUCK_FACTOR = 4.0
"""Duration of a step, in multiples of its passes' expected time, after which it counts as stuck, if longer."""

HUNG_FACTOR = 10.0
"""Duration, in the same multiples, after which a step is considered hung, if longer than the limit."""


class StepTimer:
    """Measures the duration of a step in the engine process.

    It samples at regular intervals and counts at most twice the interval per sample, so that the time while the process
    is stopped or the machine is suspended does not count.
    """

    def __init__(self) -> None:
        self._began: float | None = None
        self._lasted_s = 0.0
        self._looked = 0.0

    def look(self, began: float | None, now: float) -> float:
        """Returns the seconds since the step `began`, by the clock of `now`; 0 if `began` is None."""
        if began is None:
            self._began = None
            return 0.0
        if began != self._began:
            self._began, self._lasted_s, self._looked = began, 0.0, began
        self._lasted_s += min(now - self._looked, 2 * BEAT_S)
        self._looked = now
        return self._lasted_s


class Watchdog:
    """Measures how long an engine with work has made no progress. Thread-safe in that each field has one writer.

    A heartbeat reports how long the engine's step has lasted, and the expected time of its passes, which extends the
    limit of long steps. Silence is added to the step's time, and also counts alone, regardless of the expected time. It
    is sampled, and each sample counts at most twice the interval: what stops both processes, such as a suspended
    machine, is not charged to the engine.
    """

    def __init__(self) -> None:
        self.limit_s = math.inf
        self._stalled_s = 0.0
        self._expected_s = 0.0
        self._silent_s = 0.0
        self._looked: float | None = None

    @property
    def silence_s(self) -> float:
        """Seconds by which the next heartbeat was late at the last check."""
        return max(self._silent_s - BEAT_S, 0.0)

    @property
    def stuck_s(self) -> float:
        """Seconds without progress at the last check."""
        return self._stalled_s + self.silence_s

    @property
    def stuck(self) -> bool:
        return self.silence_s >= SEEN_S or self.stuck_s >= max(SEEN_S, STUCK_FACTOR * self._expected_s)

    def left_s(self) -> float:
        """Returns the seconds until an engine without progress for `limit_s` is considered hung."""
        left_s = max(self.limit_s, HUNG_FACTOR * self._expected_s) - self.stuck_s
        return min(self.limit_s - self.silence_s, left_s) if self.silence_s else left_s

    def hangs(self) -> bool:
        """Returns True if the engine is considered hung."""
        return self.left_s() <= 0.0

    def beat(self, stalled_s: float, expected_s: float = 0.0) -> None:
        """Records a heartbeat: the step has lasted for `stalled_s` seconds, 0 if the engine is idle; its passes are
        expected to take `expected_s`.
        """
        self._stalled_s, self._expected_s, self._silent_s = stalled_s, expected_s, 0.0

    def look(self, now: float) -> None:
        """Counts the silence since the last check. `now` is a time of a monotonic clock, in seconds."""
        if self._looked is not None:
            self._silent_s += min(now - self._looked, 2 * TICK_S)
        self._looked = now
