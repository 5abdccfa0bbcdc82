"""The text and the messages of a branch: whole, or as far as they have come."""

from __future__ import annotations

from typing import Any

from ..diagnostics.errors import ProgramError
from ..diagnostics.source_lines import caller
from ..record.expression import RoleClose, RoleOpen
from ..record.variables import Block, Kept, Slot
from ..session.branch import Branch
from ..session.replay import Piece, Turn, text_of
from .values import line_of, outcome, sync, until_through, waits


def text(branch: Branch) -> str:
    """The whole text of a branch. Without roles and blocks it is known here, otherwise the engine says it. Of a program
    that has failed: what had come, without the chat template's own text."""
    session = branch.session
    if not any(isinstance(mark, RoleOpen | Block) for mark in branch.marks):
        try:
            return "".join(_text(branch, mark) for mark in branch.marks if isinstance(mark, str | Slot | Kept))
        except ProgramError:
            if not session.ended_early:
                raise
            return text_so_far(branch)[0]
    sync(branch)
    if session.ended_early:
        return text_so_far(branch)[0]
    session.raise_error()
    try:
        return session.texts[branch.id]
    except KeyError:
        failure = session.arrivals.failure_of(branch.id)
        raise failure or ProgramError(
            f"the backend did not send the text of branch {branch.id}", code="broken_stream", place=caller()
        ) from None


def messages(branch: Branch) -> list[dict[str, str]]:
    """The messages of a branch; text outside of any is left out. Of a program that has failed: what had come."""
    try:
        return _messages(branch, _marks(branch))
    except ProgramError:
        if not branch.session.ended_early:
            raise
    pieces, _, unfinished = progress_of(branch)
    return _messages(branch, [*pieces, unfinished])


def _marks(branch: Branch) -> list[Any]:
    """What was appended: with blocks, what was really appended."""
    if not any(isinstance(mark, Block) for mark in branch.marks):
        return list(branch.marks)
    branch.session.refuse_in_block("the messages")
    branch.session.send()
    for wait in until_through(branch):
        branch.session.wait(*wait)
    return list(line_of(branch).pieces)


def _messages(branch: Branch, marks: list[Any]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    inside = False
    for mark in marks:
        match mark:
            case RoleOpen(role=role):
                found.append({"role": role, "content": ""})
                inside = True
            case RoleClose():
                inside = False
            case _ if inside:
                found[-1]["content"] += text_of(mark) if isinstance(mark, Turn) else _text(branch, mark)
    return found


def text_so_far(branch: Branch) -> tuple[str, Slot | None]:
    """What was really appended to a branch, as far as it has come, and what it waits for. Waits for nothing."""
    pieces, _, unfinished = progress_of(branch)
    return "".join(text_of(piece) for piece in pieces if isinstance(piece, str | Turn)) + unfinished, _awaited(branch)


def progress_of(branch: Branch) -> tuple[list[Piece], str, str]:
    """What was really appended to a branch so far, the value that it waits for, and that one's text as far as it has
    come. Waits for nothing."""
    slot = _awaited(branch)
    own = slot is not None and slot.branch == branch.id
    unfinished = slot.unfinished if slot is not None and own else ""
    return list(line_of(branch).pieces), "" if slot is None else slot.variable, unfinished


def _awaited(branch: Branch) -> Slot | None:
    return line_of(branch).waits_for


def _text(branch: Branch, mark: Any) -> str:
    if isinstance(mark, str):
        return mark
    if branch.session.stand_in is not None:
        return str(branch.session.stand_in(mark, "value"))
    for wait in waits(branch, mark):
        branch.session.wait(*wait)
    return text_of(outcome(branch, mark))
