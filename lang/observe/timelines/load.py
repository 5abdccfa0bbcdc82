"""How much ran at once in a batch: a picture of what the calls of all runs did at each time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ....runtime.protocol.program import Piece
from .batch import Member

Interval = tuple[float, float]

PHASES = ("name", "tool", "fill", "wait")
"""As the style sheet calls them, from the bottom of the picture to its top: decode, tools, prefill, queue."""

_NUM_BINS = 240
_HEIGHT = 100


def phases(piece: Piece, start_s: float = 0.0) -> Iterator[tuple[str, Interval]]:
    """What a call did, and when."""
    stop_s = start_s + piece.stop_s
    edge_s = start_s + piece.start_s
    for name, length_s in (("wait", piece.queue_s), ("fill", piece.prefill_s)):
        if length_s > 0:
            yield name, (edge_s, min(stop_s, edge_s + length_s))
            edge_s += length_s
    if stop_s > edge_s:
        yield "tool" if piece.kind == "tool" else "name", (edge_s, stop_s)


def merged(intervals: Iterable[Interval], gap_s: float) -> list[Interval]:
    """What the intervals cover together; gaps no wider than `gap_s` are closed."""
    found: list[Interval] = []
    for start_s, stop_s in sorted(intervals):
        if found and start_s <= found[-1][1] + gap_s:
            found[-1] = found[-1][0], max(found[-1][1], stop_s)
        else:
            found.append((start_s, stop_s))
    return found


class Load(NamedTuple):
    """How many calls did what: areas as (phase, SVG path) in a box, and how many calls were most at once."""

    most: float
    areas: Sequence[tuple[str, str]]
    width: int = _NUM_BINS
    height: int = _HEIGHT


def picture(members: Sequence[Member], span_s: float) -> Load:
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
