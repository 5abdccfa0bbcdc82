"""Replay of a program with blocks: repeats its instructions with the values that have arrived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...runtime.protocol import condition as runtime
from ...runtime.protocol.condition import Ref, Times, holds
from ...runtime.protocol.patterns import PatternCache
from ...runtime.protocol.program import CallTools, Fork, Join, RoleBegin, RoleEnd, Value
from ...runtime.tools.calls import said_of
from ..record.condition import CountOf, Operand, literal
from ..record.expression import RoleClose, RoleOpen
from ..record.recorder import (
    AssignNode,
    EntryOf,
    Node,
    OpNode,
    RepeatNode,
    TextNode,
    TimesMade,
    UseNode,
    WhenNode,
    walk_nodes,
)
from ..record.variables import Derived, Entry, Fixed, Gathered, Kept, Passage, Slot
from ..tools.offered import read_made


class Turn(NamedTuple):
    """One value of a slot."""

    slot: Slot
    value: Value

    @property
    def variable(self) -> str:
        return self.slot.variable


class Joined(NamedTuple):
    """Values that a join has made of a variable of its branches.

    entries   what it was in each branch; None: it was not there
    found     what each of these held
    """

    variable: str
    entries: tuple[Entry | None, ...]
    found: tuple[Outcome | Joined, ...]
    errors_as_values: bool


Piece = str | Turn | RoleOpen | RoleClose
Outcome = str | Turn | Fixed | Derived | Gathered | None
"""Content of a variable in the end: a text, a value, or an entry that is read as it is; None: nothing."""


@dataclass(eq=False)
class Line:
    """Progress of a branch.

    pieces      what was appended
    made        all values in order, also those that were not appended; of joined branches, the lists of theirs
    waits_for   the value that has not come yet, or never will
    unsure      slots and variables that will change before the branch goes on to what comes after its block
    """

    pieces: list[Piece] = field(default_factory=list)
    made: list[Turn | Joined] = field(default_factory=list)
    values: dict[int, Outcome] = field(default_factory=dict)
    counts: Counter[int] = field(default_factory=Counter)
    num_inherited: int = 0
    num_made_before: int = 0
    waits_for: Slot | None = None
    unsure: set[int] = field(default_factory=set)


def text_of(found: Outcome) -> str:
    """Returns the content of a variable, as text."""
    match found:
        case str():
            return found
        case Turn(value=value):
            return value.text
        case Fixed(value=value):
            return str(value)
        case _:
            return ""


class _StalledError(Exception):
    """The branch cannot go on before a value has come."""

    def __init__(self, slot: Slot) -> None:
        super().__init__()
        self.slot = slot


class Replay:
    """Does the instructions one after the other. A branch that lacks a value stops; the others go on.

    has_failed   whether a branch has ended early
    patterns     where compiled regular expressions are kept
    """

    def __init__(self, nodes: Sequence[Node], has_failed: Callable[[int], bool], patterns: PatternCache) -> None:
        self.lines: dict[int, Line] = {0: Line()}
        self._has_failed = has_failed
        self._used: Counter[int] = Counter()
        self._patterns = patterns
        for node in nodes:
            self._try(node)

    def knows(self, branch: int, entry: Slot | Kept) -> bool:
        """Returns true if what `entry` holds now is final: its value is there, or is known not to come."""
        line = self._line(branch)
        if line.waits_for is None:
            return True
        return id(entry) in line.values and id(entry) not in line.unsure

    def outcome(self, entry: Entry | None) -> Outcome:
        """Returns what an entry holds."""
        match entry:
            case None | Fixed() | Gathered() | Derived():
                return entry
            case Passage(marks=marks):
                return "".join(mark if isinstance(mark, str) else text_of(self.outcome(mark)) for mark in marks)
            case Kept(unchanged=True, before=before):
                return self.outcome(before)
            case Slot() | Kept():
                return self._line(entry.branch).values.get(id(entry))

    def _line(self, branch: int) -> Line:
        return self.lines.setdefault(branch, Line())

    def _try(self, node: Node) -> None:
        line = self._line(node.branch)
        if line.waits_for is not None:
            self._stop(node, line.waits_for)
            return
        try:
            self._do(node)
        except _StalledError as stall:
            self._stop(node, stall.slot)

    def _stop(self, node: Node, slot: Slot) -> None:
        """Has all branches in `node` wait."""
        for inner in walk_nodes([node]):
            line = self._line(inner.branch)
            line.waits_for = line.waits_for or slot
            match inner:
                case AssignNode(kept=kept):
                    line.unsure.add(id(kept))
                case OpNode(op=Fork(children=children)):
                    for child in children:
                        self._line(child).waits_for = slot
                case OpNode() | UseNode() if inner.slot is not None:
                    line.unsure.add(id(inner.slot))
                case _:
                    pass

    def _do(self, node: Node) -> None:
        line = self._line(node.branch)
        match node:
            case TextNode(parts=parts):
                line.pieces += list(self._written(parts))
            case OpNode(op=CallTools(), slot=Slot() as slot):
                line.pieces += _exchange(self._make(line, slot))
            case OpNode(slot=Slot() as slot):
                line.pieces.append(self._make(line, slot))
            case OpNode():
                self._do_op(line, node)
            case UseNode(slot=slot, append=append):
                turn = self._make(line, slot)
                if append:
                    line.pieces.append(turn)
            case AssignNode(kept=kept, entry=entry):
                self._await(entry)
                line.values[id(kept)] = self.outcome(entry)
            case WhenNode():
                taken = node.then if self._holds(node, node.condition.lower) else node.otherwise
                self._block(node.branch, taken)
            case RepeatNode():
                for _ in range(node.at_most):
                    self._block(node.branch, node.body)
                    if self._holds(node, node.until.lower):
                        break

    def _do_op(self, line: Line, node: OpNode) -> None:
        match node.op:
            case RoleBegin(role=role):
                line.pieces.append(RoleOpen(role))
            case RoleEnd():
                opened = next((p.role for p in reversed(line.pieces) if isinstance(p, RoleOpen)), "")
                line.pieces.append(RoleClose(opened))
            case Fork(children=children):
                for child in children:
                    self.lines[child] = Line(
                        list(line.pieces),
                        list(line.made),
                        num_inherited=len(line.pieces),
                        num_made_before=len(line.made),
                    )
            case Join(children=children, mode=mode):
                for child in children:
                    if self._has_failed(child):
                        continue
                    other = self._line(child)
                    if other.waits_for is not None:
                        raise _StalledError(other.waits_for)
                    if mode == "append":
                        line.pieces += other.pieces[other.num_inherited :]
                lines = [self._line(child) for child in children]
                made = {one.variable for other in lines for one in other.made[other.num_made_before :]}
                line.made += [self._joined(name, node.gathered[name]) for name in node.gathered if name in made]
                if isinstance(adopted := self.outcome(node.adopted), Turn):
                    line.made.append(adopted)
            case _:
                pass

    def _joined(self, name: str, gathered: Gathered) -> Joined:
        found = (
            self._joined(name, entry)
            if isinstance(entry, Gathered)
            else self.outcome(entry.slot if isinstance(entry, Derived) else entry)
            for entry in gathered.entries
        )
        return Joined(name, gathered.entries, tuple(found), gathered.errors_as_values)

    def _block(self, branch: int, nodes: Sequence[Node]) -> None:
        """Does what is in a block of `branch`. Branches forked in it stop by themselves; that one stops all of it."""
        for node in nodes:
            self._try(node)
        for node in nodes:
            line = self._line(node.branch)
            if line.waits_for is not None and (node.branch == branch or not self._has_failed(node.branch)):
                raise _StalledError(line.waits_for)

    def _make(self, line: Line, slot: Slot) -> Turn:
        index = self._used[id(slot)]
        if index >= len(slot.values):
            raise _StalledError(slot)
        self._used[id(slot)] += 1
        turn = Turn(slot, slot.values[index])
        line.values[id(slot)] = turn
        line.counts[id(slot)] += 1
        line.made.append(turn)
        return turn

    def _await(self, entry: Entry | None) -> None:
        """Stops the branch if a value that `entry` is made of is still to come."""
        for part in _parts_of(entry):
            line = self._line(part.branch)
            if line.waits_for is not None and not self.knows(part.branch, part):
                raise _StalledError(line.waits_for)

    def _written(self, parts: Iterable[object]) -> Iterator[Piece]:
        for part in parts:
            if isinstance(part, Slot | Kept):
                self._await(part)
                outcome = self.outcome(part)
                yield outcome if isinstance(outcome, Turn) else text_of(outcome)
            elif isinstance(part, str):
                yield part

    def _holds(self, node: Node, lower: Callable[[Callable[[Operand], runtime.Operand]], runtime.Condition]) -> bool:
        """Returns true if a condition holds; its operands get names that say what they stand for."""
        operands: list[Operand] = []

        def named(operand: Operand) -> runtime.Operand:
            if isinstance(operand, CountOf):
                return runtime.Count(tuple(inner.lower(named) for inner in operand.of))
            if isinstance(operand, EntryOf) and isinstance(operand.entry, Fixed):
                return literal(operand.entry.value)
            operands.append(operand)
            name = str(len(operands) - 1)
            return Times(node.branch, name) if isinstance(operand, TimesMade) else Ref(node.branch, name)

        return holds(lower(named), _Known(self, operands))

    def text_of(self, operand: Operand) -> str:
        """Returns the text of an operand of a condition."""
        if not isinstance(operand, EntryOf):
            return ""
        self._await(operand.entry)
        return text_of(self.outcome(operand.entry))

    def times_of(self, operand: Operand) -> int:
        """Counts the values of a slot."""
        assert isinstance(operand, TimesMade)
        return self._line(operand.slot.branch).counts[id(operand.slot)]

    def matches(self, pattern: str, text: str) -> bool:
        return self._patterns.get(pattern).matches(text)


class _Known:
    """Values that a condition asks for."""

    def __init__(self, replay: Replay, operands: Sequence[Operand]) -> None:
        self._replay = replay
        self._operands = operands

    def text(self, ref: Ref) -> str:
        return self._replay.text_of(self._operands[int(ref.name)])

    def times(self, name: Times) -> int:
        return self._replay.times_of(self._operands[int(name.name)])

    def contains(self, text: str, part: str) -> bool:
        return part in text

    def matches(self, pattern: str, text: str) -> bool:
        return self._replay.matches(pattern, text)


def _exchange(turn: Turn) -> Iterator[Piece]:
    """Yields the results of a turn's calls, as messages, and the beginning of the assistant's next one."""
    if calls := read_made(turn.value.text):
        yield RoleClose("assistant")
        for call in calls:
            yield from (RoleOpen("tool"), said_of(call), RoleClose("tool"))
        yield RoleOpen("assistant")


def _parts_of(entry: Entry | None) -> Iterator[Slot | Kept]:
    match entry:
        case Kept(unchanged=True, before=before):
            yield from _parts_of(before)
        case Slot() | Kept():
            yield entry
        case Passage(marks=marks):
            for mark in marks:
                if not isinstance(mark, str):
                    yield from _parts_of(mark)
        case _:
            pass
