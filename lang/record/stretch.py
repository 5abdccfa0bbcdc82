"""What was sent in one request, and the values it brings back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...runtime.protocol.program import Program, ProgramEvent, Value
from ...runtime.tools.registry import ToolCall
from ..diagnostics.source_lines import Place

if TYPE_CHECKING:
    from ..diagnostics.errors import ProgramError

NO_TOOLS: Mapping[str, ToolCall] = {}


@dataclass(eq=False, slots=True)
class Slot:
    """A value that an instruction makes, or several in the turns of a loop.

    name      as sent: unique within its branch, so that a second `gen("x")` there is "x#2"
    variable  as the program calls it
    kind      the type that was asked for; None: text
    in_block  in a `when` or `repeat_until`: nothing, one value or many may come
    chunks    its text as far as it has arrived, of all turns one after the other
    values    what has arrived, turn by turn
    skipped   it was passed over, the last time that the program came by
    failure   why its branch has ended without it
    attempt   how often its branch has begun anew, which voids what had arrived
    streamed  a stream of its values has been asked for
    stretch   the request that it is part of; None until that is sent
    """

    branch: int
    name: str
    convert: Callable[[str], Any]
    place: Place
    choices: tuple[str, ...] | None = None
    kind: object = None
    variable: str = ""
    in_block: bool = False
    chunks: list[str] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    skipped: bool = False
    failure: ProgramError | None = None
    attempt: int = 0
    stretch: Stretch | None = None
    streamed: bool = False
    _num_whole: int = 0

    @property
    def value(self) -> Value | None:
        """The latest."""
        return self.values[-1] if self.values else None

    @property
    def complete(self) -> bool:
        """No more will come."""
        if self.failure is not None or (self.stretch is not None and self.stretch.ended):
            return True
        return bool(self.values) and not self.in_block

    @property
    def settled(self) -> bool:
        """There is a value, or there will never be one."""
        return bool(self.values) or self.complete

    @property
    def unfinished(self) -> str:
        """The text of the value that is being made."""
        return "".join(self.chunks[self._num_whole :])

    def add_text(self, text: str) -> None:
        if text:
            self.chunks.append(text)

    def add_value(self, value: Value) -> None:
        self.chunks[self._num_whole :] = [value.text]
        self._num_whole = len(self.chunks)
        self.values.append(value)
        self.skipped = False

    def restart(self) -> None:
        """Its branch begins anew."""
        self.chunks, self.values, self.skipped, self._num_whole = [], [], False, 0
        self.attempt += 1


@dataclass(eq=False, slots=True)
class Stretch:
    """One request: instructions between two reads, with the line that recorded each of them.

    places     in the order of `walk`
    tools      those of this process that it uses, by name
    begun      its first event has come, so that it can be continued
    ended      its last event has come, or none will
    pulling    a thread is waiting for its next event
    cancels    it holds nothing but the wish that something be stopped
    """

    program: Program
    places: tuple[Place, ...]
    events: Iterator[ProgramEvent] | None = None
    begun: bool = False
    ended: bool = False
    pulling: bool = False
    tools: Mapping[str, ToolCall] = field(default_factory=lambda: NO_TOOLS)
    cancels: bool = False
