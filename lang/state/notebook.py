"""Views of states, groups and compiled programs for notebooks: escaped HTML of bounded size, light or dark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from ..observe.pages.render import render
from ..record.expression import RoleClose, RoleOpen
from ..session.branch import Branch
from ..session.replay import Piece, Turn
from .streaming import progress_of
from .values import shown

MAX_MESSAGES = 60
MAX_TEXT = 6_000  # characters of a message
MAX_VALUES = 60
MAX_VALUE = 400  # characters
MAX_BRANCHES = 16
MAX_ROWS = 200
MAX_COLUMNS = 12
MAX_CELL = 120  # characters


class Shown(Protocol):
    """Anything that has a view of its own."""

    def _repr_html_(self) -> str: ...


class _Bubble(NamedTuple):
    """A message, or text outside of any: its pieces, each with the title of the value that it is."""

    role: str
    pieces: list[tuple[str, str]]


class _Row(NamedTuple):
    """A program of a batch: its values, or why there are none."""

    cells: list[str]
    error: str


def state_view(branch: Branch, returned: object = None) -> str:
    """The chat as far as it has come, generated text marked, the variables, and what the body has returned, in its own
    view if it has one. Waits for nothing."""
    session = branch.session
    error = session.arrivals.failure_of(branch.id) or session.error
    pieces, waits_for, text = progress_of(branch)
    bubbles = list(_bubbles(pieces))
    left_out, half = max(0, len(bubbles) - MAX_MESSAGES), MAX_MESSAGES // 2
    names = list(branch.variables)
    return render(
        "state.html",
        title=session.settings.title,
        branch=branch.id,
        status=_status(branch),
        bubbles=[*bubbles[:half], *bubbles[-half:]] if left_out else bubbles,
        left_out=left_out,
        left_out_at=half,
        coming=_cut(text, MAX_TEXT) if waits_for else "",
        error="" if error is None else _cut(str(error), MAX_TEXT),
        values=[(_cut(name, MAX_VALUE), _cut(shown(branch, name), MAX_VALUE)) for name in names[:MAX_VALUES]],
        more_values=len(names) - MAX_VALUES,
        returned="" if returned is None else _cut(repr(returned), MAX_TEXT),
        returned_view=_own_view(returned),
    )


def described(branch: Branch) -> str:
    """The error or the values of a branch in a line, each cut, or how far it is. Waits for nothing."""
    session = branch.session
    error = session.arrivals.failure_of(branch.id) or session.error
    if error is not None:
        return f", failed: {_cut(str(error) or type(error).__name__, MAX_CELL)}"
    if not session.finished:
        return f", {_status(branch)}"
    names = list(branch.variables)
    values = [f"{name}={_cut(shown(branch, name), MAX_CELL)}" for name in names[:MAX_COLUMNS]]
    more = [f"{len(names) - MAX_COLUMNS} more"] if len(names) > MAX_COLUMNS else []
    return ": " + ", ".join([*values, *more]) if values else ""


def batch_view(branches: Sequence[tuple[Branch, object]]) -> str:
    """The programs of a batch in a table, with what each has returned: a row each, a column for each variable."""
    names = list(dict.fromkeys(name for branch, _ in branches for name in branch.variables))[:MAX_COLUMNS]
    returns = any(returned is not None for _, returned in branches)
    errors = [branch.session.error for branch, _ in branches]
    rows = []
    for (branch, returned), error in zip(branches[:MAX_ROWS], errors, strict=False):
        cells = [_cut(shown(branch, name), MAX_CELL) if name in branch.variables else "" for name in names]
        cells += [_cut(repr(returned), MAX_CELL)] if returns else []
        rows.append(_Row(cells, "" if error is None else _cut(str(error), MAX_VALUE)))
    return render(
        "table.html",
        title=branches[0][0].session.settings.title if branches else "batch",
        number=len(branches),
        failed=sum(error is not None for error in errors),
        columns=[*(_cut(name, MAX_CELL) for name in names), *(["returned"] if returns else [])],
        rows=rows,
    )


def _own_view(value: object) -> str:
    """The HTML of a value that has a view; "" for others, and for types themselves."""
    make = None if isinstance(value, type) else getattr(value, "_repr_html_", None)
    view = make() if callable(make) else None
    return view if isinstance(view, str) else ""


def group_view(states: Sequence[Shown]) -> str:
    """The branches of a fork, each to be opened."""
    views = [state._repr_html_() for state in states[:MAX_BRANCHES]]
    return render("group.html", views=views, number=len(states))


def text_view(title: str, text: str) -> str:
    """A text as it is."""
    return render("text.html", title=title, text=_cut(text, 10 * MAX_TEXT))


def _status(branch: Branch) -> str:
    session = branch.session
    if session.arrivals.failure_of(branch.id) is not None or session.error is not None:
        return "failed"
    if not session.finished:
        return "running" if session.outbox.submissions else "recorded, not sent"
    usage = session.tally.usage
    return (
        f"{usage.prompt_tokens:,} prompt tokens, {usage.cached_tokens:,} of them from the cache · "
        f"{usage.completion_tokens:,} generated"
    )


def _bubbles(pieces: Iterable[Piece]) -> Iterator[_Bubble]:
    """Messages, and what stands between them, each no longer than `MAX_TEXT`."""
    bubble, room = _Bubble("", []), MAX_TEXT
    for piece in pieces:
        match piece:
            case RoleOpen(role=role):
                yield from [bubble] if bubble.pieces else []
                bubble, room = _Bubble(role, []), MAX_TEXT
                continue
            case RoleClose():
                yield bubble
                bubble, room = _Bubble("", []), MAX_TEXT
                continue
            case Turn(slot=slot, value=value):
                title = slot.variable + (f", turn {value.turn + 1}" if value.turn else "")
                text = value.text
            case str():
                title, text = "", piece
        if room > 0:
            bubble.pieces.append((_cut(text, room), title))
        room -= len(text)
    if bubble.pieces:
        yield bubble


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}… ({len(text):,} characters)"
