"""Puts values where programs refer to them, and says which of them are still to come."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .branch import Branch
from .condition import Hole, Ref, Times
from .decide import NotYetError
from .enqueue import NEVER
from .errors import EngineError, RequestError
from .patterns import Pattern
from .program import Part
from .program_state import COPIED, Run


def look_up(ref: Ref, reader: Branch, branches: Mapping[int, Branch]) -> str:
    """The value that `ref` means in an instruction of `reader`: the last one of that name.

    Who is in a loop finds what has been made last there; who is not waits until the loop is over.

    Raises:
        NotYetError: it is still to come.
        EngineError: its branch has ended early.
        RequestError: it will never come.
    """
    source = branches.get(ref.branch)
    if source is not None and ref.name in source.values:
        looping = source.looping.get(ref.name)
        if looping and source.failure is None and not all(loop in reader.inside for loop in looping):
            raise NotYetError
        return source.values[ref.name]
    if source is not None and source.failure is not None:
        message = f"there is no value {ref.name!r}: branch {ref.branch} has failed: {source.failure.error.message}"
        raise EngineError(message, code="branch_failed", param="ops")
    if source is None or source.scope == NEVER or source.settled or source is reader:
        raise RequestError(f"there is no value named {ref.name!r} in branch {ref.branch}", param="ops")
    raise NotYetError


def write(
    parts: tuple[Part, ...], reader: Branch, branches: Mapping[int, Branch], *, max_length: float = math.inf
) -> str:
    """The text of `parts`.

    Raises:
        NotYetError, EngineError, RequestError: as `look_up`; or more than `max_length` characters in all.
    """
    texts: list[str] = []
    room = max_length
    for part in parts:
        assert not isinstance(part, Hole)
        text = part if isinstance(part, str) else look_up(part, reader, branches)
        room -= len(text)
        if room < 0:  # references can name a long value many times
            message = f"the text has more than {max_length:g} characters, which no context holds"
            raise RequestError(message, code="context_length_exceeded", param="ops")
        texts.append(text)
    return "".join(texts)


class ConditionValues:
    """What a condition in an instruction of `reader` asks for. `work` is what has been compared, as `run` counts it."""

    def __init__(self, run: Run, reader: Branch, branches: Mapping[int, Branch]) -> None:
        self._run = run
        self._reader = reader
        self._branches = branches
        self.work = 0

    def text(self, ref: Ref) -> str:
        text = look_up(ref, self._reader, self._branches)
        self.work += len(text) // COPIED
        return text

    def times(self, name: Times) -> int:
        source = self._branches.get(name.branch)
        if source is None or source.scope == NEVER:
            return 0
        if source is not self._reader and not source.settled:
            raise NotYetError
        return source.made[name.name]

    def matches(self, pattern: str, text: str) -> bool:
        compiled: Pattern = self._run.patterns[pattern]
        self.work += len(text) // PATTERN_CHARS
        return compiled.matches(text)


PATTERN_CHARS = 16
"""Characters that are matched against a pattern in the time of one instruction."""
