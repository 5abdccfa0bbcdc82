"""Contents of variables, and the submissions that produce their values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...runtime.protocol.program import Part, Program, ProgramEvent, Ref, Value
from ...runtime.tools.registry import ToolCall
from ..diagnostics.errors import ProgramError
from ..diagnostics.source_lines import Place, caller
from .expression import RoleClose, RoleOpen

NO_TOOLS: Mapping[str, ToolCall] = {}


@dataclass(eq=False, slots=True)
class Slot:
    """A value that an instruction makes, or several in the turns of a loop.

    name      as sent: unique within its branch, so that a second `gen("x")` there is "x#2"
    variable  as the program calls it
    kind      the type that was asked for; None: text
    in_block  in a `when` or `repeat_until`: nothing, one value or many may come
    chunks    its text as far as it has arrived: a chunk for each value, then those of the one that is being made
    values    what has arrived, turn by turn
    skipped   it was passed over, the last time that the program came by
    failure   why its branch has ended without it
    attempt   how often its branch has begun anew, which voids what had arrived
    streamed  a stream of its values has been asked for
    submission   the request that it is part of; None until that is sent
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
    submission: Submission | None = None
    streamed: bool = False

    @property
    def value(self) -> Value | None:
        """The latest."""
        return self.values[-1] if self.values else None

    @property
    def complete(self) -> bool:
        """No more will come."""
        if self.failure is not None or (self.submission is not None and self.submission.ended):
            return True
        return bool(self.values) and not self.in_block

    @property
    def settled(self) -> bool:
        """There is a value, or there will never be one."""
        return bool(self.values) or self.complete

    @property
    def unfinished(self) -> str:
        """The text of the value that is being made."""
        return "".join(self.chunks[len(self.values) :])

    def add_text(self, text: str) -> None:
        if text:
            self.chunks.append(text)

    def add_value(self, value: Value) -> None:
        self.chunks[len(self.values) :] = [value.text]
        self.values.append(value)
        self.skipped = False

    def restart(self, num_kept: int) -> None:
        """Its branch begins anew; the first `num_kept` values, of earlier turns of a loop that forks it, stay."""
        self.values = self.values[:num_kept]
        self.chunks = self.chunks[: len(self.values)]
        self.skipped = False
        self.attempt += 1


@dataclass(eq=False, slots=True)
class Submission:
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

    @property
    def arguments(self) -> tuple[Program] | tuple[Program, Mapping[str, ToolCall]]:
        """Those of a backend's `run`: tools only if it uses some, since not all backends take them."""
        return (self.program, self.tools) if self.tools else (self.program,)


@dataclass(frozen=True, eq=False, slots=True)
class Fixed:
    """A value that the program assigned."""

    value: object


@dataclass(frozen=True, eq=False, slots=True)
class Derived:
    """Something else that can be read from a generated text."""

    slot: Slot
    convert: Callable[[str], Any]


@dataclass(frozen=True, eq=False, slots=True)
class Passage:
    """Text and values that were appended inside a `var_scope`, without the chat template's own text."""

    marks: tuple[Piece, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Gathered:
    """The variables of joined branches, in their order; None for one that has no such variable.

    errors_as_values   what a branch that failed would have had is read as its error
    """

    entries: tuple[Entry | None, ...]
    errors_as_values: bool = False


@dataclass(eq=False, slots=True)
class Kept:
    """A variable that holds one thing or another, depending on which way the program goes: the blocks of a `when` or
    `repeat_until` assign it.

    variable   its name in the program
    name       its name for the engine; "" until the instructions are sent
    carried    a loop carries it from turn to turn: it changes at the end of each
    before     of what is carried: what it is in the first turn
    unchanged  the loop does not assign it after all: it is what it was before
    sources    what is assigned to it, in all places
    referred   the engine has to know it, since instructions refer to it
    looked_at  of what a loop may carry: the body has read it while it was recorded
    elements   of what may be a list, gathered in a block: what each of its elements is
    """

    branch: int
    variable: str
    carried: bool = False
    before: Entry | None = None
    name: str = ""
    unchanged: bool = False
    sources: list[Entry | None] = field(default_factory=list)
    referred: bool = False
    looked_at: bool = False
    elements: list[Kept] = field(default_factory=list)

    @property
    def has_text(self) -> bool:
        """True if whatever it comes to hold is one text (or nothing)."""
        return all(_has_text(entry, {id(self)}) for entry in (*self.sources, self.before))

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The generations that it may hold."""
        found: dict[int, Slot] = {}
        _collect(self, found, set())
        return tuple(found.values())


@dataclass(frozen=True, slots=True)
class Block:
    """Stands in a transcript for what only the run decides."""


Entry = Slot | Fixed | Derived | Passage | Gathered | Kept
Piece = str | Slot | Kept
Mark = Piece | RoleOpen | RoleClose | Block
"""An element of a branch's transcript."""

BLOCK = Block()


def marks_of(name: str, entry: Entry) -> tuple[Piece, ...]:
    """An entry as elements of a transcript.

    Raises:
        ProgramError: it has no one text.
    """
    match entry:
        case Slot():
            return (entry,)
        case Fixed(value=value):
            return (value if isinstance(value, str) else str(value),)
        case Passage(marks=marks):
            return marks
        case Kept():
            if not entry.has_text:
                raise ProgramError(
                    f"{name!r} may be a list, gathered from several branches in a block: refer to one of them with "
                    f"s.ref({name!r}, index)",
                    code="invalid_program",
                    place=caller(),
                )
            refer(entry)
            return (entry,)
        case Gathered():
            raise ProgramError(
                f"{name!r} is a list, gathered from several branches: refer to one of them with s.ref({name!r}, index)",
                code="invalid_program",
                place=caller(),
            )
        case Derived():
            raise ProgramError(
                f"{name!r} is only part of a generated text: read it with s[{name!r}], and append what you read",
                code="invalid_program",
                place=caller(),
            )


def elements_of(entry: Entry | None) -> Sequence[Entry | None]:
    """The elements of what is a list, gathered from several branches. Of what a loop carries: of what it is before the
    loop; that it changes is found out at the loop's end."""
    match entry:
        case Gathered(entries=entries):
            return entries
        case Kept(elements=[], before=before):
            return elements_of(before)
        case Kept(elements=elements):
            return elements
        case _:
            return ()


def parts_of(marks: tuple[Piece, ...]) -> Iterator[Part]:
    """Elements of a transcript as parts of an instruction. What was kept must have its name."""
    for mark in marks:
        match mark:
            case str():
                yield mark
            case Slot():
                yield Ref(mark.branch, mark.name)
            case Kept(unchanged=True):
                yield from () if mark.before is None else parts_of(marks_of(mark.variable, mark.before))
            case Kept():
                yield Ref(mark.branch, mark.name)


def refer(entry: Entry | None) -> bool:
    """The engine has to know what `entry` is made of; whether that is news."""
    match entry:
        case Passage(marks=marks):
            return any(refer(mark) for mark in marks if isinstance(mark, Kept))
        case Kept(unchanged=True, before=before):
            return refer(before)
        case Kept(referred=False):
            entry.referred = True
            return True
        case _:
            return False


def _has_text(entry: Entry | None, seen: set[int]) -> bool:
    if isinstance(entry, Kept):
        if id(entry) in seen:
            return True
        seen.add(id(entry))
        return all(_has_text(inner, seen) for inner in (*entry.sources, entry.before))
    return not isinstance(entry, Gathered | Derived)


def _collect(entry: Entry | None, found: dict[int, Slot], seen: set[int]) -> None:
    if isinstance(entry, Slot):
        found[id(entry)] = entry
    elif isinstance(entry, Kept) and id(entry) not in seen:
        seen.add(id(entry))
        for inner in (entry.before, *entry.sources):
            _collect(inner, found, seen)
