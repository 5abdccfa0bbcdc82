"""Heartbeats against a clock: what counts as no progress, and what does not."""

from __future__ import annotations

import pytest

from bough.runtime.client.watchdog import BEAT_S, SEEN_S, TICK_S, StepTimer, Watchdog


def hangs(dog: Watchdog, limit_s: float) -> bool:
    dog.limit_s = limit_s
    return dog.hangs()


def left_s(dog: Watchdog, limit_s: float) -> float:
    dog.limit_s = limit_s
    return dog.left_s()


def looks(dog: Watchdog, start: float, seconds: float) -> float:
    """Looks every TICK_S for `seconds`; returns the time of the last."""
    for index in range(round(seconds / TICK_S) + 1):
        dog.look(start + index * TICK_S)
    return start + seconds


def test_an_engine_that_beats_is_not_stuck() -> None:
    dog = Watchdog()
    now = 100.0
    for _ in range(20):
        now = looks(dog, now, BEAT_S)
        dog.beat(0.2)
        assert dog.stuck_s < 0.3 and not dog.stuck


def test_silence_is_seen_within_five_seconds() -> None:
    dog = Watchdog()
    dog.beat(0.0)
    looks(dog, 7.0, SEEN_S)
    assert not dog.stuck
    looks(dog, 7.0 + SEEN_S, BEAT_S)
    assert dog.stuck and SEEN_S + BEAT_S <= 5.0


def test_a_step_that_does_not_end_is_seen_although_the_process_beats() -> None:
    dog = Watchdog()
    for second in range(int(SEEN_S)):
        dog.beat(float(second))
        assert not dog.stuck
    dog.beat(SEEN_S)
    assert dog.stuck
    dog.beat(0.0)
    assert not dog.stuck


def test_what_stops_both_processes_is_no_silence() -> None:
    dog = Watchdog()
    now = looks(dog, 0.0, 1.0)
    dog.look(now + 3600.0)
    assert dog.stuck_s <= 1.0 and not dog.stuck


def test_a_step_may_take_a_few_times_as_long_as_expected() -> None:
    dog = Watchdog()
    dog.beat(39.0, expected_s=10.0)
    assert not dog.stuck
    dog.beat(41.0, expected_s=10.0)
    assert dog.stuck and not hangs(dog, 5.0)
    dog.beat(99.0, expected_s=10.0)
    assert not hangs(dog, 60.0)
    dog.beat(101.0, expected_s=10.0)
    assert hangs(dog, 60.0) and not hangs(dog, 110.0)
    dog.beat(59.0, expected_s=0.5)
    assert dog.stuck and not hangs(dog, 60.0)
    dog.beat(61.0, expected_s=0.5)
    assert hangs(dog, 60.0)


def test_silence_is_measured_by_no_expectation() -> None:
    dog = Watchdog()
    dog.beat(1.0, expected_s=100.0)
    looks(dog, 0.0, SEEN_S + BEAT_S)
    assert dog.stuck and not hangs(dog, 60.0)
    looks(dog, 10.0, 60.0)
    assert hangs(dog, 60.0)


def test_what_is_left_until_it_counts_as_a_hang() -> None:
    dog = Watchdog()
    dog.beat(20.0, expected_s=1.0)
    assert left_s(dog, 60.0) == 40.0
    dog.beat(20.0, expected_s=10.0)
    assert left_s(dog, 60.0) == 80.0
    dog.beat(0.0)
    looks(dog, 0.0, 50.0)
    assert left_s(dog, 60.0) == pytest.approx(60.0 - (50.0 - BEAT_S))


def test_a_step_lasts_as_long_as_it_does() -> None:
    timer = StepTimer()
    assert timer.look(None, 5.0) == 0.0
    assert timer.look(6.5, 7.0) == 0.5
    for second in range(8, 40):
        assert timer.look(6.5, float(second)) == second - 6.5
    assert timer.look(39.9, 40.0) == pytest.approx(0.1)
    assert timer.look(None, 41.0) == 0.0


def test_a_step_does_not_last_while_its_process_is_stopped() -> None:
    timer = StepTimer()
    timer.look(6.5, 7.0)
    assert timer.look(6.5, 3607.0) == 0.5 + 2 * BEAT_S
    assert timer.look(6.5, 3608.0) == 1.5 + 2 * BEAT_S
    assert timer.look(3608.5, 9000.0) == 2 * BEAT_S  # one that began before it was looked at
