"""Draws all tokens of a run, branch by branch, coloured by where each came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

from ....runtime.protocol.errors import ErrorInfo
from ....runtime.protocol.program import Piece
from ....runtime.protocol.request import CACHED, FORCED, PREFILLED, SAMPLED, UNUSED
from .events import Record
from .html_gantt import count, describe, duration, named
from .tree import Branch, Message

_ORIGINS = {CACHED: "cached", PREFILLED: "prefilled", SAMPLED: "sampled", FORCED: "forced", UNUSED: "unused"}
_LONG_TOKENS = 160  # a message with more is folded
_MAX_CHOICES = 12
_SKIPPED = '<span class="chip skipped" data-info="its block was passed over">{} skipped</span>'
_MARKS = str.maketrans({"\n": "<u>↵</u>\n", "\r": "<u>␍</u>", "\t": "<u>→</u>\t"})


class _Note(NamedTuple):
    """It comes after all instructions before `op`, and with `before_value` just before the value that comes next."""

    op: int
    before_value: bool
    html: str


class Tokens:
    """Draws branches with all their tokens.

    numbers         gives each piece its place in the page, by identity
    probabilities   of selects of which the events do not tell, by branch and name
    key             begins all ids, so that several runs can be on one page
    """

    def __init__(
        self,
        numbers: Mapping[int, int],
        record: Record,
        probabilities: Mapping[tuple[int, str], Mapping[str, float]],
        key: str = "",
    ) -> None:
        self._numbers = numbers
        self._record = record
        self._probabilities = probabilities
        self._key = key

    def branch(self, branch: Branch) -> Iterator[str]:
        num_tokens = sum(len(piece.origins) for piece in branch.pieces)
        yield f'<article class="branch" id="{self._key}b{branch.id}">'
        yield f"<h3>{branch.label}<small>{count(num_tokens, 'token')}</small>{self._badges(branch)}</h3>"
        notes = self._notes(branch)
        for item in branch.items:
            if isinstance(item, Message):
                yield self._message(item, notes)
            else:
                yield from self._children(item)
        if notes:  # of what came after all tokens
            yield f'<p class="flow">{"".join(text for _, _, text in notes)}</p>'
        yield "</article>"

    def _children(self, children: Sequence[Branch]) -> Iterator[str]:
        shared = next((item.position for child in children for item in child.items if isinstance(item, Message)), 0)
        if shared and len(children) > 1:
            yield (
                f'<p class="shares">{len(children)} branches share the {count(shared, "token")} before them: '
                f"computed once, not {len(children)} times.</p>"
            )
        yield '<div class="children">'
        for child in children:
            yield from self.branch(child)
        yield "</div>"

    def _badges(self, branch: Branch) -> str:
        restarts = self._record.restarts.get(branch.id, ())
        badges = [f'<em class="badge">{len(restarts) + 1} attempts</em>'] if restarts else []
        failure = self._record.failures.get(branch.id)
        if failure is not None:
            word = "cancelled" if failure.code == "cancelled" else f"failed: {failure.code}"
            badges.append(f'<em class="badge dead" title="{escape(failure.message)}">{escape(word)}</em>')
        return "".join(badges)

    def _notes(self, branch: Branch) -> list[_Note]:
        """What happened where there are no tokens, in order."""
        skipped = [
            _Note(op + 1, True, _SKIPPED.format(escape(name))) for op, name in self._record.skipped.get(branch.id, ())
        ]
        restarted = [_Note(op, False, _restart(error)) for op, error in self._record.restarts.get(branch.id, ())]
        return sorted(skipped + restarted, key=lambda note: note.op)

    def _message(self, message: Message, notes: list[_Note]) -> str:
        position, flow, odds = message.position, [], []
        for piece in message.pieces:
            while notes and notes[0].op <= piece.op and (piece.name or not notes[0].before_value):
                flow.append(notes.pop(0).html)
            flow.append(self._piece(piece, position))
            odds.append(_odds(named(piece, self._record), self._odds_of(piece)))
            position += len(piece.origins)
        long = message.num_tokens > _LONG_TOKENS
        more = f'<button class="more">Show all {message.num_tokens:,} tokens</button>' if long else ""
        role = f"<b>{escape(message.role)}</b>" if message.role else ""
        chances = f'<div class="chances">{"".join(odds)}</div>' if any(odds) else ""
        return (
            f'<div class="message{"" if role else " plain"}">{role}<div class="body">'
            f'<p class="flow{" long" if long else ""}">{"".join(flow)}</p>{more}{chances}</div></div>'
        )

    def _odds_of(self, piece: Piece) -> Mapping[str, float]:
        if piece.kind != "select":
            return {}
        value = self._record.values.get(id(piece))
        odds = {} if value is None else self._record.odds(value)
        return odds or self._probabilities.get((piece.branch, piece.name), {})

    def _piece(self, piece: Piece, position: int) -> str:
        name = named(piece, self._record)
        if piece.kind == "tool":
            tool = self._record.tools.get((piece.branch, piece.name), "")
            name += f" = {tool}()" if tool else ""
            name += f" {duration(piece.stop_s - piece.start_s)}" if piece.stop_s > piece.start_s else ""
        chip = f'<span class="chip">{escape(name)}</span>' if name else ""
        texts = piece.texts + ("",) * (len(piece.origins) - len(piece.texts))
        tokens = "".join(_token(text, origin) for text, origin in zip(texts, piece.origins, strict=False))
        return (
            f'<span class="piece {piece.kind}" id="{self._key}p{self._numbers[id(piece)]}" data-at="{position}" '
            f'data-info="{describe(piece, self._record)}">{chip}{tokens}</span>'
        )


def _restart(error: ErrorInfo) -> str:
    return (
        f'<span class="again" data-info="{escape(error.message)}">begun anew after {escape(error.code)}; '
        "what is above is void</span>"
    )


def _token(text: str, origin: int) -> str:
    shown = escape(text or "∅").translate(_MARKS)
    raw = f' data-text="{escape(text)}"' if "<u>" in shown else ""
    return f'<i class="t {_ORIGINS[origin]}"{raw}>{shown}</i>'


def _odds(name: str, probabilities: Mapping[str, float]) -> str:
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
    caption = f"<figcaption>{escape(name)}</figcaption>"
    return f'<figure>{caption}<div class="odds">{rows}{rest}</div></figure>'
