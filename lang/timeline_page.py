"""Draws a timeline as one HTML page that needs nothing from outside itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from ..runtime.program import Piece
from ..runtime.request import CACHED, FORCED, PREFILLED, SAMPLED, UNUSED
from .timeline_style import SCRIPT, STYLE
from .timeline_tree import Branch, Message

_ORIGINS = {CACHED: "cached", PREFILLED: "prefilled", SAMPLED: "sampled", FORCED: "forced", UNUSED: "unused"}
_LONG_TOKENS = 160  # a message with more is folded
_MAX_CHOICES = 12
_MARKS = str.maketrans({"\n": "<u>↵</u>\n", "\r": "<u>␍</u>", "\t": "<u>→</u>\t"})
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def render(
    roots: Sequence[Branch],
    *,
    summary: Mapping[str, str | int | float],
    probabilities: Mapping[tuple[int, str], Mapping[str, float]],
) -> str:
    """The page. `summary` is `Timeline.summary()`; `probabilities` is keyed by (branch, value name)."""
    elapsed_s = float(summary["elapsed_s"])
    branches = [branch for root in roots for branch in root.walk()]
    pieces = (piece for branch in branches for piece in branch.pieces)
    numbers = {id(piece): number for number, piece in enumerate(pieces)}
    tokens = _Tokens(numbers, probabilities)
    title = escape(str(summary["title"]))
    sizes = _count(summary["branches"], "branch", "branches"), _count(summary["generations"], "generation")
    about = " · ".join((*sizes, _duration(elapsed_s)))
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title} · bough timeline</title><style>{STYLE}</style></head><body>",
            f"<header><h1>{title}</h1><p>{about}</p></header>",
            _headline(summary),
            _gantt(branches, numbers, elapsed_s),
            '<section class="card"><h2>Tokens, branch by branch</h2>',
            *(part for root in roots for part in tokens.branch(root)),
            '</section><div id="tip" role="tooltip" hidden></div>',
            f"<script>{SCRIPT}</script></body></html>\n",
        )
    )


def _headline(summary: Mapping[str, str | int | float]) -> str:
    prompt, saved = int(summary["prompt_tokens"]), int(summary["saved_tokens"])
    counts = (
        ("cached", saved, "From the cache", "not computed again"),
        ("prefilled", prompt - saved, "Prefilled", "prompt tokens computed"),
        ("sampled", int(summary["sampled_tokens"]), "Sampled", "chosen by the model"),
        ("forced", int(summary["forced_tokens"]), "Forced", "by the grammar, without sampling"),
    )
    bar = "".join(f'<i class="{name}" style="flex-grow:{count}"></i>' for name, count, _, _ in counts if count)
    legend = "".join(
        f'<div class="{name}"><dt>{label}</dt><dd>{count:,}<small>{note}</small></dd></div>'
        for name, count, label, note in counts
    )
    return (
        f'<section class="card"><p class="claim">Of <b>{prompt:,}</b> prompt tokens, <b class="share">{saved:,}</b> '
        f'came from the cache (<b class="share">{summary["cached_share"]:.0%}</b>).</p>'
        f'<div class="bar">{bar}</div><dl class="legend">{legend}</dl></section>'
    )


def _gantt(branches: Sequence[Branch], numbers: Mapping[int, int], elapsed_s: float) -> str:
    if elapsed_s <= 0:
        return ""
    lanes = []
    for branch in branches:
        runs = "".join(_run(piece, numbers[id(piece)], elapsed_s) for piece in branch.pieces)
        lanes.append(
            f'<div class="lane{" child" if branch.depth else ""}" style="--depth:{branch.depth}">'
            f'<a class="label" href="#b{branch.id}">{branch.label}</a><div class="track">{runs}</div></div>'
        )
    ticks = "".join(
        f'<i style="left:{100 * time_s / elapsed_s:.3f}%"></i>'
        f'<span style="left:{100 * time_s / elapsed_s:.3f}%">{_duration(time_s)}</span>'
        for time_s in _ticks(elapsed_s)
    )
    return (
        '<section class="card"><h2>Time</h2><div class="gantt">'
        f'<div class="plot">{ticks}</div>{"".join(lanes)}<div class="axis"></div></div>'
        '<p class="key"><span><i class="wait"></i>queue</span><span><i class="fill"></i>prefill</span>'
        '<span><i class="name"></i>decode</span></p></section>'
    )


def _run(piece: Piece, number: int, elapsed_s: float) -> str:
    length_s = piece.stop_s - piece.start_s
    if length_s <= 0:
        return ""
    width = 100 * length_s / elapsed_s
    wait, fill = (100 * min(1.0, max(0.0, part_s) / length_s) for part_s in (piece.queue_s, piece.prefill_s))
    tight = width * (100 - wait - fill) < 450  # no room for the name but in the prefill, if there
    inside = escape(piece.name) if tight and width * fill >= 450 else ""
    return (
        f'<a class="run{" tight" if tight else ""}" href="#p{number}" data-info="{_describe(piece)}" '
        f'style="left:{100 * piece.start_s / elapsed_s:.3f}%;width:{width:.3f}%">'
        f'<i class="wait" style="width:{wait:.2f}%"></i><i class="fill" style="width:{fill:.2f}%">{inside}</i>'
        f'<span class="name">{escape(piece.name)}</span></a>'
    )


class _Tokens:
    """Draws branches with all their tokens. `numbers` gives each piece its place in the page, by identity."""

    def __init__(
        self, numbers: Mapping[int, int], probabilities: Mapping[tuple[int, str], Mapping[str, float]]
    ) -> None:
        self.numbers = numbers
        self.probabilities = probabilities

    def branch(self, branch: Branch) -> Iterator[str]:
        num_tokens = sum(len(piece.origins) for piece in branch.pieces)
        yield f'<article class="branch" id="b{branch.id}">'
        yield f"<h3>{branch.label}<small>{_count(num_tokens, 'token')}</small></h3>"
        for item in branch.items:
            if isinstance(item, Message):
                yield self.message(item)
            else:
                yield '<div class="children">'
                for child in item:
                    yield from self.branch(child)
                yield "</div>"
        yield "</article>"

    def message(self, message: Message) -> str:
        position, flow, odds = message.position, [], []
        for piece in message.pieces:
            flow.append(self.piece(piece, position))
            odds.append(_odds(self.probabilities.get((piece.branch, piece.name), {}) if piece.kind == "select" else {}))
            position += len(piece.origins)
        long = message.num_tokens > _LONG_TOKENS
        more = f'<button class="more">Show all {message.num_tokens:,} tokens</button>' if long else ""
        role = f"<b>{escape(message.role)}</b>" if message.role else ""
        return (
            f'<div class="message{"" if role else " plain"}">{role}<div class="body">'
            f'<p class="flow{" long" if long else ""}">{"".join(flow)}</p>{more}{"".join(odds)}</div></div>'
        )

    def piece(self, piece: Piece, position: int) -> str:
        chip = f'<span class="chip">{escape(piece.name)}</span>' if piece.name else ""
        texts = piece.texts + ("",) * (len(piece.origins) - len(piece.texts))
        tokens = "".join(_token(text, origin) for text, origin in zip(texts, piece.origins, strict=False))
        return (
            f'<span class="piece {piece.kind}" id="p{self.numbers[id(piece)]}" data-at="{position}" '
            f'data-info="{_describe(piece)}">{chip}{tokens}</span>'
        )


def _token(text: str, origin: int) -> str:
    shown = escape(text or "∅").translate(_MARKS)
    raw = f' data-text="{escape(text)}"' if "<u>" in shown else ""
    return f'<i class="t {_ORIGINS[origin]}"{raw}>{shown}</i>'


def _odds(probabilities: Mapping[str, float]) -> str:
    if not probabilities:
        return ""
    best = max(probabilities, key=probabilities.__getitem__)
    rows = "".join(
        f'<code title="{escape(choice)}">{escape(choice)}</code>'
        f'<div class="{"best" if choice == best else ""}"><i style="width:{100 * probability:.1f}%"></i></div>'
        f"<span>{probability:.1%}</span>"
        for choice, probability in sorted(probabilities.items(), key=lambda pair: -pair[1])[:_MAX_CHOICES]
    )
    num_hidden = len(probabilities) - _MAX_CHOICES
    rest = f"<p>and {num_hidden} less likely</p>" if num_hidden > 0 else ""
    return f'<div class="odds">{rows}{rest}</div>'


def _describe(piece: Piece) -> str:
    """A sentence about a piece, escaped."""
    parts = [f"{piece.kind} {piece.name}".strip(), _count(len(piece.origins), "token")]
    if piece.stop_s > piece.start_s:
        decode_s = max(0.0, piece.stop_s - piece.start_s - piece.queue_s - piece.prefill_s)
        phases = (("queue", piece.queue_s), ("prefill", piece.prefill_s), ("decode", decode_s))
        parts.append(f"{_duration(piece.start_s)} to {_duration(piece.stop_s)}")
        parts.append(", ".join(f"{name} {_duration(phase_s)}" for name, phase_s in phases))
    return escape(" · ".join(parts))


def _ticks(stop_s: float) -> list[float]:
    """Round times, about six of them, from 0 on and not so near to the end that their labels would leave the page."""
    rough_s = stop_s / 6
    unit_s = 10.0 ** math.floor(math.log10(rough_s))
    step_s = next(factor * unit_s for factor in (1, 2, 5, 10) if factor * unit_s >= rough_s)
    return [index * step_s for index in range(int(0.98 * stop_s / step_s) + 1)]


def _duration(seconds: float) -> str:
    if seconds == 0:
        return "0"
    if seconds < 0.001:
        return f"{1e6 * seconds:.0f} µs"
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _count(number: str | int | float, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
