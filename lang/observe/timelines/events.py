"""Reads the events of a run for its timeline: the tokens, and what happened between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ....runtime.protocol.errors import ErrorInfo
from ....runtime.protocol.program import (
    BranchFailed,
    BranchRestarted,
    Done,
    Failed,
    Fork,
    Op,
    Piece,
    ProgramEvent,
    Repeat,
    Select,
    Skipped,
    Use,
    Value,
    When,
    walk,
)
from ....runtime.protocol.request import Usage
from .tree import ForkPoint

Place = tuple[int, str]
"""A branch and the name of a value in it."""


@dataclass
class RunRecord:
    """Facts that the events of a run told.

    forks       in the order in which they were recorded
    values      by the identity of the piece that holds their tokens
    tools       which tool makes a value
    choices     of the selects
    probabilities   of each choice of a select, the last time that it was done
    skipped     values that were passed over: of each branch, with the instruction that they come after
    restarts    why each branch began anew, and with which instruction its next attempt begins
    refused     why values were not accepted, and asked for again
    failures    why branches have ended early
    failed_s    when at the earliest they did, as far as the events tell
    error       what the whole program has failed with
    """

    pieces: list[Piece] = field(default_factory=list)
    forks: list[ForkPoint] = field(default_factory=list)
    values: dict[int, Value] = field(default_factory=dict)
    tools: dict[Place, str] = field(default_factory=dict)
    choices: dict[Place, tuple[str, ...]] = field(default_factory=dict)
    probabilities: dict[Place, dict[str, float]] = field(default_factory=dict)
    skipped: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    restarts: dict[int, list[tuple[int, ErrorInfo]]] = field(default_factory=dict)
    refused: dict[Place, str] = field(default_factory=dict)
    failures: dict[int, ErrorInfo] = field(default_factory=dict)
    failed_s: dict[int, float] = field(default_factory=dict)
    error: ErrorInfo | None = None
    usage: Usage | None = None
    num_requests: int = 0

    def odds(self, value: Value) -> dict[str, float]:
        """The probability of each choice, if a select has made the value."""
        choices = self.choices.get((value.branch, value.name))
        return dict(zip(choices, value.probabilities, strict=True)) if choices and value.probabilities else {}


def read(ops: Iterable[Op], events: Iterable[ProgramEvent]) -> RunRecord:
    """`ops` are the instructions of all submissions, what is in blocks after the instruction that holds it."""
    recorded = tuple(ops)
    record = RunRecord()
    for op in recorded:
        match op:
            case Select(branch=branch, name=name, choices=choices):
                record.choices[branch, name] = choices
            case Use(branch=branch, name=name, tool=tool):
                record.tools[branch, name] = tool
    _EventReader(record).read(events)
    record.forks = _Forks(record).find(_outermost(recorded))
    return record


class _EventReader:
    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self._latest: dict[Place, Value] = {}
        self._last_op: Counter[int] = Counter()
        self._last_s = 0.0

    def read(self, events: Iterable[ProgramEvent]) -> None:
        record = self._record
        for event in events:
            match event:
                case Piece():
                    self._piece(event)
                case Value(branch=branch, name=name):
                    self._latest[branch, name] = event
                    if odds := record.odds(event):
                        record.probabilities[branch, name] = odds
                case Skipped(branch=branch, name=name):
                    record.skipped.setdefault(branch, []).append((self._last_op[branch], name))
                case BranchFailed(branch=branch, error=error):
                    record.failures.setdefault(branch, error)
                    record.failed_s.setdefault(branch, self._last_s)
                case BranchRestarted(branch=branch, error=error):
                    record.restarts.setdefault(branch, []).append((self._last_op[branch] + 1, error))
                case Failed(error=error):
                    record.error = record.error or error
                case Done(usage=usage, requests=num_requests):
                    record.usage = usage if record.usage is None else record.usage + usage
                    record.num_requests += num_requests

    def _piece(self, piece: Piece) -> None:
        self._record.pieces.append(piece)
        self._last_s = max(self._last_s, piece.stop_s)
        if piece.name:
            value = self._latest.get((piece.branch, piece.name))
            if value is not None:
                self._record.values[id(piece)] = value
            self._last_op[piece.branch] = max(self._last_op[piece.branch], piece.op)


class _Forks:
    """Finds where in the course of its branch each fork happened for the first time.

    Instructions are counted as they were done, which the pieces of values tell: what was skipped is not counted, what
    was repeated is counted each time.
    """

    def __init__(self, record: RunRecord) -> None:
        self._points: list[ForkPoint] = []
        self._next: Counter[int] = Counter()
        self._skipped = {(branch, name) for branch, names in record.skipped.items() for _, name in names}
        self._done: dict[Place, list[int]] = {}
        for piece in record.pieces:
            if piece.name:
                self._done.setdefault((piece.branch, piece.name), []).append(piece.op)

    def find(self, ops: Iterable[Op]) -> list[ForkPoint]:
        for op in ops:
            self._take(op)
        return self._points

    def _take(self, op: Op) -> None:
        place = _place_of(op)
        if place in self._done:
            self._next[op.branch] = max(self._next[op.branch], min(self._done[place]))
        if isinstance(op, Fork):
            self._points.append(ForkPoint(op.branch, op.children, self._next[op.branch]))
        self._next[op.branch] += 1
        match op:
            case When(then=then, otherwise=otherwise):
                self.find(otherwise if self._passed_over(then) else then)
            case Repeat(branch=branch, body=body):
                self.find(body)
                self._after(branch, body)

    def _after(self, branch: int, body: tuple[Op, ...]) -> None:
        """The loop is over: goes on after the last turn."""
        num_left = 1  # the instruction itself, which finds that it is over
        for op in reversed([op for op in body if op.branch == branch]):
            done = self._done.get(_place_of(op), ())
            if done:
                self._next[branch] = max(self._next[branch], max(done) + 1 + num_left)
                return
            num_left += 1

    def _passed_over(self, block: tuple[Op, ...]) -> bool:
        places = [place for op in walk(block) if (place := _place_of(op))[1]]
        return any(place in self._skipped for place in places) and not any(place in self._done for place in places)


def _place_of(op: Op) -> Place:
    return op.branch, getattr(op, "name", "")


def _outermost(ops: tuple[Op, ...]) -> Iterator[Op]:
    """Yields the instructions that are in no block, of all as `walk` gives them."""
    index = 0
    while index < len(ops):
        op = ops[index]
        yield op
        index += 1
        for inner in walk([op]):
            if inner is not op and index < len(ops) and ops[index] is inner:
                index += 1
