"""View models of a run or a batch of runs for the templates of its page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ....runtime.protocol.errors import ErrorInfo
from ....runtime.protocol.program import Piece
from ....runtime.protocol.request import CACHED, FORCED, PREFILLED, SAMPLED, UNUSED
from ..pages.render import count, duration, render
from .batch import BatchMember, Shared, first_tokens
from .events import RunRecord
from .tree import BranchTree, MessagePieces

Interval = tuple[float, float]

PHASES = ("name", "tool", "fill", "wait")
"""Phases by their names in the style sheet, from the bottom of the picture up: decode, tools, prefill, queue."""

_NUM_BINS = 240
_HEIGHT = 100


def phases(piece: Piece, start_s: float = 0.0) -> Iterator[tuple[str, Interval]]:
    """Yields what a call did, and when."""
    stop_s = start_s + piece.stop_s
    edge_s = start_s + piece.start_s
    for name, length_s in (("wait", piece.queue_s), ("fill", piece.prefill_s)):
        if length_s > 0:
            yield name, (edge_s, min(stop_s, edge_s + length_s))
            edge_s += length_s
    if stop_s > edge_s:
        yield "tool" if piece.kind == "tool" else "name", (edge_s, stop_s)


def merged(intervals: Iterable[Interval], gap_s: float) -> list[Interval]:
    """Merges intervals into what they cover together; gaps no wider than `gap_s` are closed."""
    found: list[Interval] = []
    for start_s, stop_s in sorted(intervals):
        if found and start_s <= found[-1][1] + gap_s:
            found[-1] = found[-1][0], max(found[-1][1], stop_s)
        else:
            found.append((start_s, stop_s))
    return found


class Load(NamedTuple):
    """Load of a batch: areas as (phase, SVG path) in a box, and the most calls at once."""

    most: float
    areas: Sequence[tuple[str, str]]
    width: int = _NUM_BINS
    height: int = _HEIGHT


def picture(members: Sequence[BatchMember], span_s: float) -> Load:
    """Draws the load of a batch."""
    loads = {phase: [0.0] * _NUM_BINS for phase in PHASES}
    for member in members:
        for piece in member.record.pieces:
            for phase, interval in phases(piece, member.start_s):
                _add(loads[phase], interval, span_s / _NUM_BINS)
    totals = [sum(column) for column in zip(*loads.values(), strict=True)]
    most = max(totals, default=0.0)
    if most <= 0:
        return Load(0.0, ())
    below = [0.0] * _NUM_BINS
    areas = []
    for phase in PHASES:
        above = [low + load for low, load in zip(below, loads[phase], strict=True)]
        if any(loads[phase]):
            areas.append((phase, _area(below, above, most)))
        below = above
    return Load(most, areas)


def _add(bins: list[float], interval: Interval, width_s: float) -> None:
    """Adds the share of each bin that an interval covers."""
    start, stop = (edge / width_s for edge in interval)
    for index in range(max(0, int(start)), min(len(bins), int(stop) + 1)):
        bins[index] += max(0.0, min(stop, index + 1) - max(start, index))


def _area(below: Sequence[float], above: Sequence[float], most: float) -> str:
    def points(heights: Sequence[float]) -> list[str]:
        scaled = [_HEIGHT * (1 - height / most) for height in heights]
        return [f"{x} {y:.1f}" for index, y in enumerate(scaled) for x in (index, index + 1)]

    return "M" + "L".join([*points(above), *reversed(points(below))]) + "Z"


Summary = Mapping[str, str | int | float]
Odds = Mapping[tuple[int, str], Mapping[str, float]]

MAX_TOKENS = 60_000
"""Drawn in all; runs after that show their lanes, but not their tokens."""

MAX_PROGRAMS = 2_000
_ORIGINS = {CACHED: "cached", PREFILLED: "prefilled", SAMPLED: "sampled", FORCED: "forced", UNUSED: "unused"}
_LONG_TOKENS = 160  # a message with more is folded
_DENSE = 40  # programs: more get lower lanes
_MAX_SHARED = 8
_BEFORE = 6  # tokens in a label before those that tell it apart
_MIN_SAVED = 1 / 50  # of what the first of them saves
_MIN_WIDTH = 1 / 2000  # of the page: gaps below that are not seen
_ROOM = 450  # of a bar's name, in percent of percents of the page


def run_page(roots: Sequence[BranchTree], summary: Summary, probabilities: Odds, record: RunRecord) -> str:
    """Returns the page of a run. `summary` is `Timeline.summary()`; `probabilities` is by branch and value name."""
    run = RunView(roots, record, Clock(float(summary["elapsed_s"])), probabilities)
    return render("run.html", summary=summary, run=run, ticks=_ticks)


def batch_page(members: Sequence[BatchMember], summary: Summary, shared: Sequence[Shared]) -> str:
    """Returns the page of a batch. `summary` and `shared` are those of the `BatchTimeline`."""
    span_s = float(summary["elapsed_s"])
    most_saved = max((one.saved_tokens for one in shared), default=0)
    return render(
        "batch.html",
        summary=summary,
        load=picture(members, span_s) if span_s > 0 else None,
        shared=len(shared),
        shown=[one for one in shared if one.saved_tokens >= most_saved * _MIN_SAVED][:_MAX_SHARED],
        most_saved=most_saved,
        who=lambda one: _who(one, len(members)),
        programs=list(_programs(members, span_s)),
        left_out=len(members) - MAX_PROGRAMS,
        dense=len(members) > _DENSE,
        has_tools=any(piece.kind == "tool" for member in members for piece in member.record.pieces),
        has_failed=any(member.failed or member.record.failures for member in members),
        ticks=_ticks,
    )


@dataclass(frozen=True)
class Clock:
    """The seconds that the lanes show, of which those of a run begin at `start_s`."""

    span_s: float
    start_s: float = 0.0

    def percent(self, time_s: float) -> float:
        return 100 * (self.start_s + time_s) / self.span_s


class Bar(NamedTuple):
    """A call in its lane: `left` and `width` in percent of the lane, `wait` and `fill` in percent of the bar."""

    piece: Piece
    number: int
    classes: str
    left: float
    width: float
    wait: float
    fill: float
    name: str
    name_in_fill: bool


class Note(NamedTuple):
    """An event without tokens, after all instructions before `op`, and with `skipped` just before the next value."""

    op: int
    skipped: str = ""
    error: ErrorInfo | None = None


class Section(NamedTuple):
    """A message, or branches forked after it, or with neither the notes that come after all tokens.

    parts    (piece, its position in the branch, None), or (None, 0, note)
    odds     of the selects among them: name, and the choices with their probabilities, likeliest first
    shared   tokens before the branches
    """

    message: MessagePieces | None = None
    parts: Sequence[tuple[Piece | None, int, Note | None]] = ()
    odds: Sequence[tuple[str, Sequence[tuple[str, float]]]] = ()
    long: bool = False
    children: Sequence[BranchTree] = ()
    shared: int = 0


class RunView:
    """A run for its templates.

    probabilities   of selects of which the events do not tell, by branch and name
    key             begins all ids, so that several runs can be on one page
    linked          its tokens are on the page
    """

    def __init__(
        self,
        roots: Sequence[BranchTree],
        record: RunRecord,
        clock: Clock,
        probabilities: Odds,
        key: str = "",
        *,
        linked: bool = True,
    ) -> None:
        self.roots = roots
        self.record = record
        self.key = key
        self.linked = linked
        self.branches = [branch for root in roots for branch in root.walk()]
        self.has_tools = any(piece.kind == "tool" for piece in record.pieces)
        self._clock = clock
        self._probabilities = probabilities
        pieces = (piece for branch in self.branches for piece in branch.pieces)
        self._numbers = {id(piece): number for number, piece in enumerate(pieces)}

    def number(self, piece: Piece) -> int:
        """Its place on the page."""
        return self._numbers[id(piece)]

    def num_tokens(self, branch: BranchTree) -> int:
        return sum(len(piece.origins) for piece in branch.pieces)

    def tokens(self, piece: Piece) -> Iterator[tuple[str, str]]:
        """The text and origin of each token."""
        texts = piece.texts + ("",) * (len(piece.origins) - len(piece.texts))
        return ((text, _ORIGINS[origin]) for text, origin in zip(texts, piece.origins, strict=False))

    def chip(self, piece: Piece) -> str:
        """The label before a value's tokens."""
        name = self._named(piece)
        if piece.kind == "tool":
            tool = self.record.tools.get((piece.branch, piece.name), "")
            name += f" = {tool}()" if tool else ""
            name += f" {duration(piece.stop_s - piece.start_s)}" if piece.stop_s > piece.start_s else ""
        return f"{name} refused" if (piece.branch, piece.name) in self.record.refused else name

    def describe(self, piece: Piece) -> str:
        """A sentence about a piece."""
        value = self.record.values.get(id(piece))
        tool = self.record.tools.get((piece.branch, piece.name), "")
        parts = [f"{piece.kind} {self._named(piece)}".strip() + (f" = {tool}(...)" if tool else "")]
        if piece.kind != "tool":
            parts.append(count(len(piece.origins), "token"))
        if value is not None and value.usage.prompt_tokens:
            cached, prompt = value.usage.cached_tokens, value.usage.prompt_tokens
            parts.append(f"prompt of {prompt:,}, {cached:,} from the cache")
        if piece.stop_s > piece.start_s:
            parts.append(f"{duration(piece.start_s)} to {duration(piece.stop_s)}")
            if piece.kind == "tool":
                parts.append(f"took {duration(piece.stop_s - piece.start_s)}")
            else:
                decode_s = max(0.0, piece.stop_s - piece.start_s - piece.queue_s - piece.prefill_s)
                times = (("queue", piece.queue_s), ("prefill", piece.prefill_s), ("decode", decode_s))
                parts.append(", ".join(f"{name} {duration(phase_s)}" for name, phase_s in times))
        if value is not None and piece.kind == "gen" and value.finish_reason != "stop":
            parts.append(f"ended by {value.finish_reason}")
        if (reason := self.record.refused.get((piece.branch, piece.name))) is not None:
            parts.append(f"refused: {reason}")
        return " · ".join(parts)

    def bars(self, branch: BranchTree) -> Iterator[Bar]:
        """The calls of a branch that took time."""
        for piece in branch.pieces:
            length_s = piece.stop_s - piece.start_s
            if length_s <= 0:
                continue
            width = 100 * length_s / self._clock.span_s
            wait, fill = (100 * min(1.0, max(0.0, part_s) / length_s) for part_s in (piece.queue_s, piece.prefill_s))
            tight = width * (100 - wait - fill) < _ROOM  # no room for the name but in the prefill, if there
            void = any(piece.op < start for start, _ in self.record.restarts.get(piece.branch, ()))
            marks = ("run", "tight" if tight else "", "tool" if piece.kind == "tool" else "", "void" if void else "")
            yield Bar(
                piece,
                self.number(piece),
                " ".join(filter(None, marks)),
                self._clock.percent(piece.start_s),
                width,
                wait,
                fill,
                self._named(piece),
                tight and width * fill >= _ROOM,
            )

    def end_percent(self, branch: BranchTree) -> float:
        """Returns where a branch that failed has ended, in percent of its lane."""
        stops_s = (piece.stop_s for piece in branch.pieces)
        return self._clock.percent(max((self.record.failed_s.get(branch.id, 0.0), *stops_s)))

    def items(self, branch: BranchTree) -> Iterator[Section]:
        """Messages, the branches forked between them, and notes where they belong."""
        notes = [Note(op + 1, skipped=name) for op, name in self.record.skipped.get(branch.id, ())]
        notes += [Note(op, error=error) for op, error in self.record.restarts.get(branch.id, ())]
        notes.sort(key=lambda note: note.op)
        for item in branch.items:
            if isinstance(item, MessagePieces):
                yield self._message(item, notes)
            else:
                first = (part.position for child in item for part in child.items if isinstance(part, MessagePieces))
                yield Section(children=item, shared=next(first, 0))
        if notes:
            yield Section(parts=[(None, 0, note) for note in notes])

    def _message(self, message: MessagePieces, notes: list[Note]) -> Section:
        """Takes from `notes` those that stand in the message."""
        parts: list[tuple[Piece | None, int, Note | None]] = []
        odds: list[tuple[str, Sequence[tuple[str, float]]]] = []
        position = message.position
        for piece in message.pieces:
            while notes and notes[0].op <= piece.op and (piece.name or not notes[0].skipped):
                parts.append((None, 0, notes.pop(0)))
            parts.append((piece, position, None))
            position += len(piece.origins)
            if found := self._odds_of(piece):
                odds.append((self._named(piece), sorted(found.items(), key=lambda pair: -pair[1])))
        return Section(message, parts, odds, long=message.num_tokens > _LONG_TOKENS)

    def _odds_of(self, piece: Piece) -> Mapping[str, float]:
        if piece.kind != "select":
            return {}
        value = self.record.values.get(id(piece))
        odds = {} if value is None else self.record.odds(value)
        return odds or self._probabilities.get((piece.branch, piece.name), {})

    def _named(self, piece: Piece) -> str:
        """A value's name, with its turn if it was made several times."""
        value = self.record.values.get(id(piece))
        return f"{piece.name} {value.turn + 1}" if value is not None and value.turn else piece.name


class Program(NamedTuple):
    """A run of a batch: `own` tells it apart, `bars` are (phase, left, width), in percent of its lane."""

    member: BatchMember
    run: RunView
    own: str
    bars: Sequence[tuple[str, float, float]]


def _programs(members: Sequence[BatchMember], span_s: float) -> Iterator[Program]:
    own = _own_beginnings(members)
    room = MAX_TOKENS
    for member in members[:MAX_PROGRAMS]:
        room -= sum(len(piece.origins) for piece in member.record.pieces)
        clock = Clock(span_s, member.start_s)
        run = RunView(member.roots, member.record, clock, {}, f"m{member.number}", linked=room >= 0)
        label = own[member.number]
        if member.record.error is not None:
            label = f"{member.record.error.code} {label}"
        yield Program(member, run, label, _merged(member, span_s) if span_s > 0 else ())


def _merged(member: BatchMember, span_s: float) -> list[tuple[str, float, float]]:
    """All branches' bars in one lane: queues behind prefills behind tools behind decodes."""
    spans: dict[str, list[tuple[float, float]]] = {phase: [] for phase in PHASES}
    for piece in member.record.pieces:
        for phase, interval in phases(piece, member.start_s):
            spans[phase].append(interval)
    return [
        (phase, 100 * start_s / span_s, 100 * (stop_s - start_s) / span_s)
        for phase in reversed(PHASES)
        for start_s, stop_s in merged(spans[phase], span_s * _MIN_WIDTH)
    ]


def _who(shared: Shared, num_members: int) -> str:
    number = len(shared.programs)
    if number == num_members:
        return f"all {number} programs"
    if number <= 3:
        return "programs " + ", ".join(f"#{index + 1}" for index in shared.programs)
    return f"{number} programs, #{shared.programs[0] + 1} the first"


def _own_beginnings(members: Sequence[BatchMember]) -> dict[int, str]:
    """Returns the text with which each run begins to differ from the others around it, to tell them apart by."""
    texts = {member.number: first_tokens(member.roots, template=False) for member in members}
    ordered = sorted(texts, key=lambda number: texts[number])
    found: dict[int, str] = {}
    for index, number in enumerate(ordered):
        around = [texts[other] for other in (*ordered[max(0, index - 1) : index], *ordered[index + 1 : index + 2])]
        start = max((_agreement(texts[number], other) for other in around), default=0)
        start = max(0, min(start, len(texts[number])) - _BEFORE)
        found[number] = " ".join("".join(texts[number][start : start + 24]).split())[:80]
    return found


def _agreement(first: Sequence[str], second: Iterable[str]) -> int:
    return next(
        (index for index, (left, right) in enumerate(zip(first, second, strict=False)) if left != right), len(first)
    )


def _ticks(stop_s: float) -> Sequence[float]:
    """Round times, about six of them, from 0 on and not so near to the end that their labels would leave the page."""
    rough_s = stop_s / 6
    unit_s = 10.0 ** math.floor(math.log10(rough_s))
    step_s = next(factor * unit_s for factor in (1, 2, 5, 10) if factor * unit_s >= rough_s)
    return [index * step_s for index in range(int(0.98 * stop_s / step_s) + 1)]
