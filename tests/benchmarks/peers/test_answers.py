"""Answers to plans of programs are checked and counted."""

from __future__ import annotations

from typing import Any

import pytest

from bough.benchmarks.peers.programs import Found, check
from bough.benchmarks.peers.sides.peer_walk import Plan

PLAN: Plan = [
    ["gen", 0, "x", 4, None],
    ["gen", 0, "y", 4, "[0-9]+"],
    ["select", 0, "z", ["a", "b"]],
]


class TestCheck:
    def test_counts(self) -> None:
        values = [[0, "x", "some", 3], [0, "y", "12a", 2], [0, "z", "a", None]]
        found = check([PLAN, PLAN], {"seconds": 2.0, "programs": [values, None]})
        assert found == Found(2.0, 1, 5, 1, 0, 1)
        assert found.rate == 0.5

    def test_tokens_that_nobody_counted_are_those_asked_for(self) -> None:
        values = [[0, "x", "some", None], [0, "y", "12", 1], [0, "z", "b", None]]
        found = check([PLAN], {"seconds": 1.0, "programs": [values]})
        assert (found.num_tokens, found.num_short, found.num_matching) == (5, 0, 1)

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ([[0, "x", "some", 4]], "there is no y"),
            ([[0, "x", "some", 4], [0, "y", "1", 1], [0, "z", "c", None]], "none of the choices"),
        ],
    )
    def test_what_is_missing_or_wrong(self, values: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            check([PLAN], {"seconds": 1.0, "programs": [values]})

    def test_nothing_in_time(self) -> None:
        with pytest.raises(ValueError, match="no program was finished"):
            check([PLAN], {"seconds": 1.0, "programs": [None]})
