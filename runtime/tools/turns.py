"""Calls of one turn of a model, which are made concurrently."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..protocol.errors import ErrorInfo
from ..protocol.program import MadeCall
from .calls import WrittenCall

TOLD_TO_MODEL = frozenset({"tool_failed", "tool_timeout", "unknown_tool", "invalid_tool_call"})
"""Codes of failed calls that are reported to the model. Other failures end the program."""


class ToolTurn:
    """Calls of one turn, and their outcomes."""

    def __init__(self, calls: Sequence[WrittenCall]) -> None:
        self._calls = calls
        self._found: dict[int, MadeCall] = {}

    def take(self, index: int, outcome: str | ErrorInfo) -> None:
        name, arguments = self._calls[index]
        if isinstance(outcome, ErrorInfo):
            self._found[index] = MadeCall(name, arguments, error=outcome.message)
        else:
            self._found[index] = MadeCall(name, arguments, result=outcome)

    @property
    def over(self) -> bool:
        return len(self._found) == len(self._calls)

    @property
    def made(self) -> list[MadeCall]:
        return [self._found[index] for index in range(len(self._calls))]

    @property
    def text(self) -> str:
        return msgspec.json.encode(self.made).decode()
