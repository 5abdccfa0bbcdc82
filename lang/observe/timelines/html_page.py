"""Draws a timeline as one HTML page that needs nothing from outside itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from .events import Record
from .html_gantt import Clock, count, duration, key, lane, plot
from .html_style import SCRIPT, STYLE
from .html_tokens import Tokens
from .tree import Branch

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

Summary = Mapping[str, str | int | float]


def render(
    roots: Sequence[Branch],
    *,
    summary: Summary,
    probabilities: Mapping[tuple[int, str], Mapping[str, float]],
    record: Record,
) -> str:
    """The page. `summary` is `Timeline.summary()`; `probabilities` is keyed by (branch, value name)."""
    elapsed_s = float(summary["elapsed_s"])
    numbers = numbered(roots)
    tokens = Tokens(numbers, record, probabilities)
    sizes = [count(summary["branches"], "branch", "branches"), count(summary["generations"], "generation")]
    if summary["tools"]:
        sizes.append(count(summary["tools"], "tool call"))
    return page(
        str(summary["title"]),
        " · ".join((*sizes, duration(elapsed_s))),
        (
            failure(record),
            headline(summary),
            _gantt(roots, record, numbers, elapsed_s),
            '<section class="card"><h2>Tokens, branch by branch</h2>',
            *(part for root in roots for part in tokens.branch(root)),
            "</section>",
        ),
    )


def page(title: str, about: str, body: Iterable[str]) -> str:
    """A whole page around its sections."""
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)} · bough timeline</title><style>{STYLE}</style></head><body>",
            f"<header><h1>{escape(title)}</h1><p>{about}</p></header>",
            *body,
            f'<div id="tip" role="tooltip" hidden></div><script>{SCRIPT}</script></body></html>\n',
        )
    )


def headline(summary: Summary) -> str:
    """What the cache has saved, in a sentence, a bar and four numbers."""
    prompt, saved = int(summary["prompt_tokens"]), int(summary["saved_tokens"])
    counts = (
        ("cached", saved, "From the cache", "not computed again"),
        ("prefilled", prompt - saved, "Prefilled", "prompt tokens computed"),
        ("sampled", int(summary["sampled_tokens"]), "Sampled", "chosen by the model"),
        ("forced", int(summary["forced_tokens"]), "Forced", "by the grammar, without sampling"),
    )
    bar = "".join(f'<i class="{name}" style="flex-grow:{number}"></i>' for name, number, _, _ in counts if number)
    legend = "".join(
        f'<div class="{name}"><dt>{label}</dt><dd>{number:,}<small>{note}</small></dd></div>'
        for name, number, label, note in counts
    )
    return (
        f'<section class="card"><p class="claim">Of <b>{prompt:,}</b> prompt tokens, <b class="share">{saved:,}</b> '
        f'came from the cache (<b class="share">{summary["cached_share"]:.0%}</b>).</p>'
        f'<div class="bar">{bar}</div><dl class="legend">{legend}</dl></section>'
    )


def failure(record: Record) -> str:
    """What the program has failed with."""
    if record.error is None:
        return ""
    return f'<section class="card dead"><b>{escape(record.error.code)}</b> {escape(record.error.message)}</section>'


def numbered(roots: Sequence[Branch]) -> dict[int, int]:
    """The place of each piece in the page, by identity."""
    pieces = (piece for root in roots for branch in root.walk() for piece in branch.pieces)
    return {id(piece): number for number, piece in enumerate(pieces)}


def _gantt(roots: Sequence[Branch], record: Record, numbers: Mapping[int, int], elapsed_s: float) -> str:
    if elapsed_s <= 0:
        return ""
    clock = Clock(elapsed_s)
    lanes = (lane(branch, record, numbers, clock) for root in roots for branch in root.walk())
    tools = any(piece.kind == "tool" for piece in record.pieces)
    return (
        f'<section class="card"><h2>Time</h2><div class="gantt">{plot(elapsed_s)}{"".join(lanes)}'
        f'<div class="axis"></div></div>{key(tools=tools, failed=bool(record.failures))}</section>'
    )
