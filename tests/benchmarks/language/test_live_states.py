"""Idle programs: they are really held, counted in bytes, and none gets a thread."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bough.benchmarks.language import live_states
from bough.benchmarks.language.live_states import GOAL_BYTES, StateCost, measure_held
from bough.cli import bench


@pytest.mark.parametrize("name", ["plain", "async"])
def test_states_that_wait_are_small_and_have_no_threads(name: str) -> None:
    cost = asyncio.run(measure_held(name, 2000))
    assert cost.num_more_threads <= 0
    assert cost.resident_bytes < 1.5 * GOAL_BYTES  # other tests have left free memory, or need some


def test_what_costs_too_much_is_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cost = StateCost("plain body", 10, GOAL_BYTES, 0, 0.1, 0.1)
    costs = [cost]
    monkeypatch.setattr(live_states, "_in_child", lambda *_: costs[0])
    assert live_states.run(bench.read("live_states", ["--engine-states", "0"])[1]) == 0
    assert "20.0" in capsys.readouterr().out
    for bad in (replace(cost, resident_bytes=GOAL_BYTES + 1), replace(cost, num_more_threads=1)):
        costs[0] = bad
        assert live_states.run(bench.read("live_states", [])[1]) == 1


def test_a_case_is_measured_in_a_process_of_its_own() -> None:
    cost = live_states._in_child(measure_held, "async", 200)
    assert cost.num_states == 200 and cost.case == "async body"
    assert 4000 < cost.resident_bytes < 10 * GOAL_BYTES
