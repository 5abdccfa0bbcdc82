"""How states, groups and compiled programs look in a notebook: HTML that is escaped, bounded, and light or dark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import NamedTuple, Protocol

from ..record.expression import RoleClose, RoleOpen
from ..session.branch import Branch
from ..session.replay import Piece, Turn
from .texts import progress_of
from .values import shown

MAX_MESSAGES = 60
MAX_TEXT = 6_000  # characters of a message
MAX_VALUES = 60
MAX_VALUE = 400  # characters
MAX_BRANCHES = 16

# Colours are mixed with the page's own text colour, so that they fit light and dark pages.
_STYLE = """<style>
.bough-view { font: 13.5px/1.5 system-ui, sans-serif; max-width: 60em; }
.bough-view * { box-sizing: border-box; }
.bough-view .head { opacity: .7; margin: 2px 0 8px; } .bough-view .head b { font-weight: 650; }
.bough-view .turn { margin: 6px 0; padding: 7px 12px; border-radius: 12px; white-space: pre-wrap; max-width: 85%;
  overflow-wrap: anywhere; width: fit-content; background: rgb(127 127 127 / 13%); }
.bough-view .turn.user { margin-left: auto; border-bottom-right-radius: 3px; background: rgb(0 114 178 / 16%); }
.bough-view .turn.assistant { border-bottom-left-radius: 3px; }
.bough-view .turn.none { max-width: none; width: auto; background: none; padding: 0; border-radius: 0;
  font-family: ui-monospace, monospace; font-size: 13px; }
.bough-view .turn small { display: block; opacity: .6; font-size: 11px; }
.bough-view mark { background: rgb(0 158 115 / 20%); color: inherit; border-bottom: 2px solid rgb(0 158 115);
  border-radius: 2px; padding: 0 1px; }
.bough-view .bad { color: #d0453a; white-space: pre-wrap; overflow-wrap: anywhere; }
.bough-view table { border-collapse: collapse; margin: 10px 0 4px; font-size: 13px; }
.bough-view td, .bough-view th { text-align: left; vertical-align: top; padding: 3px 14px 3px 0; background: none;
  border-top: 1px solid rgb(127 127 127 / 25%); }
.bough-view td code { white-space: pre-wrap; overflow-wrap: anywhere; background: none; }
.bough-view pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.bough-view summary { cursor: pointer; }
</style>"""


class Shown(Protocol):
    """What has a view of its own."""

    def _repr_html_(self) -> str: ...


class _Bubble(NamedTuple):
    """A message, or text outside of any: HTML of its pieces. `length` counts its characters."""

    role: str
    pieces: list[str]
    length: list[int]


def state_view(branch: Branch) -> str:
    """The chat as far as it has come, generated text marked, and the variables. Waits for nothing."""
    session = branch.session
    head = f"<b>{escape(session.settings.title)}</b>" + (f", branch {branch.id}" if branch.id else "")
    head += f" · {_status(branch)}"
    error = session.arrivals.failure_of(branch.id) or session.error
    why = "" if error is None else f'<p class="bad">{escape(_cut(str(error), MAX_TEXT))}</p>'
    pieces, waits_for, text = progress_of(branch)
    bubbles = list(_bubbles(pieces))
    if waits_for and text:
        bubbles = [*bubbles, _Bubble("", [f"<mark>{escape(_cut(text, MAX_TEXT))}</mark>…"], [0])]
    return _view(f'<p class="head">{head}</p>{_chat(bubbles)}{why}{_table(branch)}')


def group_view(states: Sequence[Shown]) -> str:
    """The branches of a fork, each to be opened."""
    parts = [
        f"<details{'' if index else ' open'}><summary>branch {index + 1} of {len(states)}</summary>"
        f"{state._repr_html_()}</details>"
        for index, state in enumerate(states[:MAX_BRANCHES])
    ]
    left_out = len(states) - MAX_BRANCHES
    more = f"<p>and {left_out} more</p>" if left_out > 0 else ""
    return _view("".join(parts) + more)


def text_view(title: str, text: str) -> str:
    """A text as it is."""
    return _view(f'<p class="head"><b>{escape(title)}</b></p><pre>{escape(_cut(text, 10 * MAX_TEXT))}</pre>')


def _view(inner: str) -> str:
    return f'{_STYLE}<div class="bough-view">{inner}</div>'


def _status(branch: Branch) -> str:
    session = branch.session
    if session.arrivals.failure_of(branch.id) is not None or session.error is not None:
        return "failed"
    if not session.finished:
        return "running" if session.stretches else "recorded, not sent"
    usage = session.usage
    return (
        f"{usage.prompt_tokens:,} prompt tokens, {usage.cached_tokens:,} of them from the cache · "
        f"{usage.completion_tokens:,} generated"
    )


def _bubbles(pieces: Iterable[Piece]) -> Iterator[_Bubble]:
    """Messages, and what stands between them."""
    bubble = _Bubble("", [], [0])
    for piece in pieces:
        match piece:
            case RoleOpen(role=role):
                yield from [bubble] if bubble.pieces else []
                bubble = _Bubble(role, [], [0])
            case RoleClose():
                yield bubble
                bubble = _Bubble("", [], [0])
            case Turn():
                slot, value = piece
                title = slot.variable + (f", turn {value.turn + 1}" if value.turn else "")
                _add(bubble, value.text, f'<mark title="{escape(title)}">', "</mark>")
            case str():
                _add(bubble, piece, "", "")
    if bubble.pieces:
        yield bubble


def _add(bubble: _Bubble, text: str, before: str, after: str) -> None:
    room = MAX_TEXT - bubble.length[0]
    bubble.length[0] += len(text)
    if room > 0:
        bubble.pieces.append(f"{before}{escape(_cut(text, room))}{after}")


def _chat(bubbles: Sequence[_Bubble]) -> str:
    half = MAX_MESSAGES // 2
    left_out = len(bubbles) - MAX_MESSAGES
    drawn = [_bubble(bubble) for bubble in (bubbles if left_out <= 0 else [*bubbles[:half], *bubbles[-half:]])]
    if left_out > 0:
        drawn.insert(half, f"<p>... {left_out} messages ...</p>")
    return "".join(drawn)


def _bubble(bubble: _Bubble) -> str:
    kind = bubble.role if bubble.role in ("user", "assistant", "system") else "none" if not bubble.role else "other"
    role = f"<small>{escape(bubble.role)}</small>" if bubble.role else ""
    return f'<div class="turn {kind}">{role}{"".join(bubble.pieces)}</div>'


def _table(branch: Branch) -> str:
    names = list(branch.variables)
    if not names:
        return ""
    rows = "".join(
        f"<tr><th>{escape(_cut(name, MAX_VALUE))}</th><td><code>{escape(_cut(shown(branch, name), MAX_VALUE))}</code>"
        "</td></tr>"
        for name in names[:MAX_VALUES]
    )
    left_out = len(names) - MAX_VALUES
    more = f"<tr><th>...</th><td>{left_out} more</td></tr>" if left_out > 0 else ""
    return f"<table>{rows}{more}</table>"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}… ({len(text):,} characters)"
