"""Draws when what happened: a lane for each branch, with a bar for each call, on one clock."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from ....runtime.protocol.program import Piece
from .events import Record
from .tree import Branch

_SECONDS_SHORT = 0.001


@dataclass(frozen=True)
class Clock:
    """What the lanes show: so many seconds, of which those of a run begin at `start_s`. `key` tells runs apart."""

    span_s: float
    start_s: float = 0.0
    key: str = ""

    def percent(self, time_s: float) -> float:
        return 100 * (self.start_s + time_s) / self.span_s


def lane(branch: Branch, record: Record, numbers: Mapping[int, int], clock: Clock, *, linked: bool = True) -> str:
    """A branch's lane. `numbers` gives each piece its place in the page by identity; `linked`: its tokens are there."""
    runs = "".join(_run(piece, record, numbers[id(piece)], clock, linked=linked) for piece in branch.pieces)
    target = f' href="#{clock.key}b{branch.id}"' if linked else ""
    mark = _ending(branch, record, clock)
    return (
        f'<div class="lane{" child" if branch.depth else ""}" style="--depth:{branch.depth}">'
        f'<a class="label"{target}>{branch.label}</a><div class="track">{runs}{mark}</div></div>'
    )


def plot(span_s: float) -> str:
    """The lines and labels of round times."""
    ticks = "".join(
        f'<i style="left:{100 * time_s / span_s:.3f}%"></i>'
        f'<span style="left:{100 * time_s / span_s:.3f}%">{duration(time_s)}</span>'
        for time_s in _ticks(span_s)
    )
    return f'<div class="plot">{ticks}</div>'


def key(*, tools: bool, failed: bool) -> str:
    """What the colours mean."""
    marks = [("wait", "queue"), ("fill", "prefill"), ("name", "decode")]
    marks += [("tool", "tool")] if tools else []
    marks += [("dead", "failed or cancelled")] if failed else []
    return f'<p class="key">{"".join(f"<span><i class={mark}></i>{word}</span>" for mark, word in marks)}</p>'


def named(piece: Piece, record: Record) -> str:
    """A value's name, with its turn if it was made several times."""
    value = record.values.get(id(piece))
    return f"{piece.name} {value.turn + 1}" if value is not None and value.turn else piece.name


def describe(piece: Piece, record: Record) -> str:
    """A sentence about a piece, escaped."""
    value = record.values.get(id(piece))
    tool = record.tools.get((piece.branch, piece.name), "")
    parts = [f"{piece.kind} {named(piece, record)}".strip() + (f" = {tool}(...)" if tool else "")]
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
            phases = (("queue", piece.queue_s), ("prefill", piece.prefill_s), ("decode", decode_s))
            parts.append(", ".join(f"{name} {duration(phase_s)}" for name, phase_s in phases))
    if value is not None and piece.kind == "gen" and value.finish_reason != "stop":
        parts.append(f"ended by {value.finish_reason}")
    return escape(" · ".join(parts))


def duration(seconds: float) -> str:
    if seconds == 0:
        return "0"
    if seconds < _SECONDS_SHORT:
        return f"{1e6 * seconds:.0f} µs"
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def count(number: str | int | float, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _run(piece: Piece, record: Record, number: int, clock: Clock, *, linked: bool) -> str:
    length_s = piece.stop_s - piece.start_s
    if length_s <= 0:
        return ""
    target = f'href="#{clock.key}p{number}"' if linked else 'tabindex="0"'
    width = 100 * length_s / clock.span_s
    wait, fill = (100 * min(1.0, max(0.0, part_s) / length_s) for part_s in (piece.queue_s, piece.prefill_s))
    tight = width * (100 - wait - fill) < 450  # no room for the name but in the prefill, if there
    void = any(piece.op < start for start, _ in record.restarts.get(piece.branch, ()))
    name = escape(named(piece, record))
    inside = name if tight and width * fill >= 450 else ""
    marks = ("run", "tight" if tight else "", "tool" if piece.kind == "tool" else "", "void" if void else "")
    classes = " ".join(filter(None, marks))
    return (
        f'<a class="{classes}" {target} data-info="{describe(piece, record)}" '
        f'style="left:{clock.percent(piece.start_s):.3f}%;width:{width:.3f}%">'
        f'<i class="wait" style="width:{wait:.2f}%"></i><i class="fill" style="width:{fill:.2f}%">{inside}</i>'
        f'<span class="name">{name}</span></a>'
    )


def _ending(branch: Branch, record: Record, clock: Clock) -> str:
    """Marks where a branch has ended early."""
    failure = record.failures.get(branch.id)
    if failure is None:
        return ""
    stop_s = max((record.failed_s.get(branch.id, 0.0), *(piece.stop_s for piece in branch.pieces)))
    word = "cancelled" if failure.code == "cancelled" else "failed"
    at = clock.percent(stop_s)
    place = f"right:{100 - at:.3f}%" if at > 88 else f"left:{at:.3f}%"  # it must not leave the page
    info = escape(f"{word} · {failure.code} · {failure.message}")
    return f'<b class="dead" style="{place}" data-info="{info}">{word}</b>'


def _ticks(stop_s: float) -> Sequence[float]:
    """Round times, about six of them, from 0 on and not so near to the end that their labels would leave the page."""
    rough_s = stop_s / 6
    unit_s = 10.0 ** math.floor(math.log10(rough_s))
    step_s = next(factor * unit_s for factor in (1, 2, 5, 10) if factor * unit_s >= rough_s)
    return [index * step_s for index in range(int(0.98 * stop_s / step_s) + 1)]
