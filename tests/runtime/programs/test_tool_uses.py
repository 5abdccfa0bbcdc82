"""Calls of tools by programs: what they are charged, and what their values hold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bough.runtime.programs import costs
from bough.runtime.protocol.program import Assign, Ref, Text, Use

from .tool_place import ToolPlace


@pytest.fixture
def place() -> Iterator[ToolPlace]:
    made = ToolPlace()
    yield made
    made.close()


def test_arguments_are_charged_by_their_length(place: ToolPlace) -> None:
    argument = ("text", (Ref(0, "x"),) * 5)
    place.run([Assign(0, "x", ("a" * 200_000,)), Use(0, "u", "upper", (argument,), append=False)], keep=True)
    assert place.executor._states["p"].work >= 1_000_000 // costs.COPIED_PER_WORK


def test_values_of_tools_are_counted(place: ToolPlace) -> None:
    place.run([Text(0, ("x",)), *(Use(0, f"u{index}", "upper", (("text", ("y",)),)) for index in range(20))], keep=True)
    state = place.executor._states["p"]
    assert state.account.num_held >= costs.BRANCH_TOKENS + 20 * (costs.VALUE_TOKENS + 2 * len("Y!"))
