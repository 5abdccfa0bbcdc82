"""Heartbeats of an engine process, and what they say about its progress."""

from __future__ import annotations

import math

BEAT_S = 1.0
"""Time between two heartbeats."""

TICK_S = 0.5
"""Time between two looks at them."""

SEEN_S = 3.0
"""Time without progress after which an engine counts as stuck."""

STUCK_FACTOR = 4.0
"""Times as long as its passes are expected to take after which a step counts as stuck, if that is longer."""

HUNG_FACTOR = 10.0
"""Times as long after which it is beyond hope, if that is longer than what is allowed."""


class StepTimer:
    """Measures in the engine's process how long a step has lasted.

    It does so in looks, each of which counts no more than twice the time between two of them: a process that is
    stopped, or a machine that is suspended, takes no time of a step.
    """

    def __init__(self) -> None:
        self._began: float | None = None
        self._lasted_s = 0.0
        self._looked = 0.0

    def look(self, began: float | None, now: float) -> float:
        """Returns for how many seconds the step that `began` at a time of the same clock has lasted; None: 0."""
        if began is None:
            self._began = None
            return 0.0
        if began != self._began:
            self._began, self._lasted_s, self._looked = began, 0.0, began
        self._lasted_s += min(now - self._looked, 2 * BEAT_S)
        self._looked = now
        return self._lasted_s


class Watchdog:
    """Measures for how long an engine with work has made no progress. Thread-safe enough: one writer for each field.

    A heartbeat brings how long the engine's step has lasted by then, and how long its passes are expected to take, by
    which a step of long passes may last longer; silence counts on top of it, and by itself whatever is expected.
    Silence is measured in looks, each of which counts no more than twice the time between two of them: what stops both
    processes, such as a suspended machine, is not the engine's fault.
    """

    def __init__(self) -> None:
        self.limit_s = math.inf
        self._stalled_s = 0.0
        self._expected_s = 0.0
        self._silent_s = 0.0
        self._looked: float | None = None

    @property
    def silence_s(self) -> float:
        """Seconds by which the next heartbeat was late, at the last look."""
        return max(self._silent_s - BEAT_S, 0.0)

    @property
    def stuck_s(self) -> float:
        """Seconds without progress, at the last look."""
        return self._stalled_s + self.silence_s

    @property
    def stuck(self) -> bool:
        return self.silence_s >= SEEN_S or self.stuck_s >= max(SEEN_S, STUCK_FACTOR * self._expected_s)

    def left_s(self) -> float:
        """Seconds until an engine that makes no progress for `limit_s` is beyond hope."""
        left_s = max(self.limit_s, HUNG_FACTOR * self._expected_s) - self.stuck_s
        return min(self.limit_s - self.silence_s, left_s) if self.silence_s else left_s

    def hangs(self) -> bool:
        """Returns whether it is beyond hope."""
        return self.left_s() <= 0.0

    def beat(self, stalled_s: float, expected_s: float = 0.0) -> None:
        """Takes a heartbeat: the step has lasted for `stalled_s` seconds, 0 if there is nothing to do; its passes are
        expected to take `expected_s`.
        """
        self._stalled_s, self._expected_s, self._silent_s = stalled_s, expected_s, 0.0

    def look(self, now: float) -> None:
        """Counts the silence since the last look. `now` is a time of a monotonic clock, in seconds."""
        if self._looked is not None:
            self._silent_s += min(now - self._looked, 2 * TICK_S)
        self._looked = now
