"""What was sent in one request, and the values it brings back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..runtime.program import Program, ProgramEvent, Value
from .place import Place


@dataclass(eq=False, slots=True)
class Slot:
    """A value that an instruction generates.

    name      as sent: unique within its branch, so that a second `gen("x")` there is "x#2"
    kind      the type that was asked for; None: text
    chunks    its text as far as it has arrived
    streamed  a stream of its values has been asked for
    stretch   the request that it is part of; None until that is sent
    """

    branch: int
    name: str
    convert: Callable[[str], Any]
    place: Place
    choices: tuple[str, ...] | None = None
    kind: object = None
    chunks: list[str] = field(default_factory=list)
    value: Value | None = None
    stretch: Stretch | None = None
    streamed: bool = False

    @property
    def settled(self) -> bool:
        """It is there, or will never be."""
        return self.value is not None or (self.stretch is not None and self.stretch.ended)


@dataclass(eq=False, slots=True)
class Stretch:
    """One request: instructions between two reads, with the line that recorded each of them.

    begun      its first event has come, so that it can be continued
    ended      its last event has come, or none will
    pulling    a thread is waiting for its next event
    """

    program: Program
    places: tuple[Place, ...]
    events: Iterator[ProgramEvent] | None = None
    begun: bool = False
    ended: bool = False
    pulling: bool = False
