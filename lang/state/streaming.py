"""Text, messages and typed values of a branch: whole, partial so far, or streamed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from ...constrain.json_text.partial import PartialReader
from ...constrain.spec import JsonSchema
from ..diagnostics.errors import ProgramError, UnsupportedError
from ..diagnostics.source_lines import caller, users_lines
from ..record.expression import RoleClose, RoleOpen
from ..record.variables import Block, Derived, Entry, Kept, Slot, marks_of
from ..session.branch import Branch
from ..session.replay import Piece, Turn, text_of
from ..session.session import Session, Wait
from ..types.partial import shape_of
from .values import (
    converted,
    line_of,
    meta_info,
    meta_info_so_far,
    outcome,
    over,
    raise_missing,
    read,
    sync,
    until_through,
    value_of,
    waits,
)


def text(branch: Branch) -> str:
    """The whole text of a branch. Without roles and blocks it is known here, otherwise the engine says it. Of a program
    that has failed: what had come, without the chat template's own text."""
    session = branch.session
    branch.settle()
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
        return session.arrivals.texts[branch.id]
    except KeyError:
        failure = session.arrivals.failure_of(branch.id)
        raise failure or ProgramError(
            f"the backend did not send the text of branch {branch.id}", code="broken_stream", place=caller()
        ) from None


def num_tokens(branch: Branch) -> int:
    """The tokens of a branch as the engine counts them. Over an API: those of the latest prompt and its answer."""
    session = branch.session
    sync(branch)
    session.raise_error()
    counted = session.arrivals.num_tokens.get(branch.id)
    if counted is not None:
        return counted
    for mark in reversed(_marks(branch)):
        value = mark.value if isinstance(mark, Turn | Slot) else None
        if value is not None and value.usage.prompt_tokens:
            return value.usage.prompt_tokens + value.usage.completion_tokens
    raise UnsupportedError(
        f"{type(session.backend).__name__} has no tokenizer, and no answer has told a number of tokens yet",
        param="num_tokens",
        place=caller(),
    )


def messages(branch: Branch) -> list[dict[str, str]]:
    """The messages of a branch; text outside of any is left out. Of a program that has failed: what had come."""
    try:
        return _dicts(passages(branch))
    except ProgramError:
        if not branch.session.ended_early:
            raise
    pieces, _, unfinished = progress_of(branch)
    return _dicts(_passages(branch, [*pieces, unfinished]))


def passages(branch: Branch) -> list[tuple[str, str]]:
    """The messages of a branch, as role and content; text outside of any has the role ""."""
    return _passages(branch, _marks(branch))


def _marks(branch: Branch) -> list[Any]:
    """Returns what was appended: with blocks, what was really appended."""
    branch.settle()
    if not any(isinstance(mark, Block) for mark in branch.marks):
        return list(branch.marks)
    branch.session.refuse_in_block("the messages")
    branch.session.send()
    for wait in until_through(branch):
        branch.session.wait(*wait)
    return list(line_of(branch).pieces)


def _passages(branch: Branch, marks: list[Any]) -> list[tuple[str, str]]:
    found: list[tuple[str, list[str]]] = [("", [])]
    for mark in marks:
        match mark:
            case RoleOpen(role=role):
                found.append((role, []))
            case RoleClose():
                found.append(("", []))
            case _:
                found[-1][1].append(text_of(mark) if isinstance(mark, Turn) else _text(branch, mark))
    joined = [(role, "".join(texts)) for role, texts in found]
    return [(role, text) for role, text in joined if role or text]


def _dicts(passages: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"role": role, "content": text} for role, text in passages if role]


def text_so_far(branch: Branch) -> tuple[str, Slot | None]:
    """Returns what was really appended to a branch, as far as it has come, and what it waits for. Waits for nothing."""
    pieces, _, unfinished = progress_of(branch)
    return "".join(text_of(piece) for piece in pieces if isinstance(piece, str | Turn)) + unfinished, _awaited(branch)


def progress_of(branch: Branch) -> tuple[list[Piece], str, str]:
    """Returns what was really appended to a branch so far, the value that it waits for, and its text as far as it has
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
    return branch.session.reading.text(branch, mark)


Item = TypeVar("Item")


class Stream(Iterator[Item], AsyncIterator[Item], Generic[Item]):
    """Stream for `for` or for `async for`. Nothing is sent before the first item is asked for."""

    def __init__(self, session: Session, walk: Iterator[Item | Wait]) -> None:
        session.watched = True
        self._session = session
        self._walk = walk

    @users_lines
    def __next__(self) -> Item:
        for item in self._walk:
            if not isinstance(item, Wait):
                return item
            self._session.wait(*item)
        raise StopIteration

    async def __anext__(self) -> Item:
        with users_lines:
            for item in self._walk:
                if not isinstance(item, Wait):
                    return item
                await self._session.await_until(item.done)
        raise StopAsyncIteration


def text_stream(branch: Branch, name: str | None) -> Stream[str]:
    """The text of a variable, or of a whole branch but for the chat template's."""
    return Stream(branch.session, _walk(branch, name))


def described_stream(branch: Branch, name: str) -> Stream[tuple[str, dict[str, Any]]]:
    """The text of a variable, each piece with what is known of the value by then. A piece is held back until the next
    comes, so that the last one comes with all that there is to know."""

    def walk() -> Iterator[Any]:
        yield from _until_known(branch, name)
        entry = branch.look_up(name)
        held: list[tuple[str, dict[str, Any]]] = []
        try:
            for item in _walk_entry(branch, name, entry):
                if isinstance(item, Wait):
                    yield item
                elif item:
                    yield from held
                    held = [(item, meta_info_so_far(branch, entry))]
            yield from waits(branch, entry)
        except ProgramError:
            yield from held
            raise
        for text, _ in held:
            yield text, meta_info(branch, entry)

    return Stream(branch.session, walk())


def value_stream(branch: Branch, name: str) -> Stream[Any]:
    """A variable's typed value: each time that more of it is complete what there is of it, and last the whole."""

    def walk() -> Iterator[Any]:
        yield from _until_known(branch, name)
        entry = branch.look_up(name)
        if not isinstance(entry, Slot) or entry.kind is None:
            message = f"{name!r} is not a typed value, so it has no parts: ask for one with gen({name!r}, Type)"
            raise ProgramError(message, code="invalid_program", place=caller())
        yield from _walk_values(branch, entry)

    return Stream(branch.session, walk())


def kind_stream(branch: Branch, kind: object) -> Stream[Any]:
    """The same for the latest value of the type `kind`, from outside of the body."""

    def walk() -> Iterator[Any]:
        session = branch.session
        if slot_of(branch, kind) is None and not session.may_send:
            yield Wait(lambda: slot_of(branch, kind) is not None or session.body.ended)
        slot = slot_of(branch, kind)
        if slot is None:
            session.raise_error()
            raise ProgramError(f"no value of {kind!r} was asked for", code="unknown_variable", place=caller())
        yield from _walk_values(branch, slot)

    return Stream(branch.session, walk())


def slot_stream(branch: Branch, slot: Slot) -> Stream[Any]:
    """The same for a value that is known."""
    return Stream(branch.session, _walk_values(branch, slot))


def slot_of(branch: Branch, kind: object) -> Slot | None:
    """The latest value of a type."""
    entries = reversed(list(branch.variables.values()))
    return next((entry for entry in entries if isinstance(entry, Slot) and entry.kind == kind), None)


async def aread(branch: Branch, name: str) -> Any:
    """The value of a variable, for tasks."""
    session = branch.session
    for wait in _until_known(branch, name):
        await session.await_until(wait.done)
    entry = branch.look_up(name)
    for wait in session.reading.waits(branch, entry):
        await session.await_until(wait.done)
    return read(branch, entry)


def _walk(branch: Branch, name: str | None) -> Iterator[str | Wait]:
    if name is not None:
        yield from _until_known(branch, name)
        yield from _walk_entry(branch, name, branch.look_up(name))
        return
    session, index, num_chars = branch.session, 0, 0
    yield from _attempts(session)
    while True:
        while index < len(branch.transcript):
            mark = branch.transcript[index]
            if isinstance(mark, Block):
                index = len(branch.transcript)
                num_chars = yield from _walk_line(branch, num_chars)
                break
            index += 1
            if isinstance(mark, str | Slot | Kept):
                for item in _walk_mark(branch, mark):
                    num_chars += len(item) if isinstance(item, str) else 0
                    yield item
        session.raise_error()
        if session.may_send:
            return
        yield Wait(partial(_longer, branch, index))


def _walk_entry(branch: Branch, name: str, entry: Entry) -> Iterator[str | Wait]:
    if isinstance(entry, Derived):  # which part of the text is whose is known at its end
        yield from waits(branch, entry)
        yield str(read(branch, entry))
        return
    for part in marks_of(name, entry):
        yield from _walk_mark(branch, part)


def _walk_values(branch: Branch, slot: Slot) -> Iterator[Any]:
    """Yields what is complete of a typed value, as often as there is more, and last the value itself.

    Text that is no JSON, as of an `int`, has no parts; whether the end is right, the type decides.
    """
    reader: PartialReader | None = PartialReader(shape_of(slot.kind))
    for item in _walk_mark(branch, slot):
        if isinstance(item, Wait):
            yield item
            continue
        try:
            more = reader is not None and reader.feed(item)
        except ValueError:
            reader = None
            continue
        if more and reader is not None and not reader.done:
            yield reader.value
    is_schema = isinstance(slot.kind, Mapping | str | JsonSchema)
    yield converted(branch.session, slot, value_of(branch.session, slot), json.loads if is_schema else slot.convert)


def _walk_line(branch: Branch, num_chars: int) -> Generator[str | Wait, None, int]:
    """Yields what was really appended to a branch with blocks, after its first `num_chars` characters, as far as it is
    recorded now; returns how many there are then."""
    session = branch.session
    session.send()
    while True:
        text, slot = text_so_far(branch)
        if slot is not None and not _through(session, slot) and session.arrivals.may_restart(branch.id):
            yield Wait(partial(_through, session, slot), slot)
        elif len(text) > num_chars:
            yield text[num_chars:]
            num_chars = len(text)
        elif slot is None:
            return num_chars
        elif over(session, slot, whole=True) or session.error is not None:
            raise_missing(session, slot)
        else:
            yield Wait(partial(_moved, session, slot, len(slot.chunks), slot.attempt), slot)


def _through(session: Session, slot: Slot) -> bool:
    return over(session, slot) if slot.submission is None else slot.submission.ended


def _moved(session: Session, slot: Slot, num_chunks: int, attempt: int) -> bool:
    return over(session, slot, whole=True) or len(slot.chunks) > num_chunks or slot.attempt > attempt


def _walk_mark(branch: Branch, mark: str | Slot | Kept) -> Iterator[str | Wait]:
    if isinstance(mark, str):
        yield mark
        return
    if isinstance(mark, Kept):
        yield from waits(branch, mark)
        yield text_of(outcome(branch, mark))
        return
    session, num_seen = branch.session, 0
    if mark.submission is None:
        session.send()
    yield from _certain(session, mark)
    while True:
        new = "".join(mark.chunks)[num_seen:]
        if new:
            num_seen += len(new)
            yield new
        elif mark.complete and (mark.value is not None or mark.in_block):
            if mark.failure is not None:
                raise mark.failure
            return
        elif over(session, mark, whole=True) or session.error is not None:
            raise_missing(session, mark)
        else:
            yield Wait(partial(_grown, session, mark, num_seen), mark)


def _certain(session: Session, slot: Slot) -> Iterator[Wait]:
    """Until what has come of a slot stays: a branch that may begin anew has first to be through, since no stream can
    take back what it has yielded."""
    if session.arrivals.may_restart(slot.branch):
        yield Wait(partial(_through, session, slot), slot)


def _longer(branch: Branch, num_marks: int) -> bool:
    return len(branch.transcript) > num_marks or branch.session.body.ended


def _grown(session: Session, slot: Slot, num_seen: int) -> bool:
    return over(session, slot, whole=True) or sum(map(len, slot.chunks)) > num_seen


def _attempts(session: Session) -> Iterator[Wait]:
    """Until the values that the body has asked for with retries are right, for the body itself."""
    if session.records_here:
        yield from session.settling()


def _until_known(branch: Branch, name: str) -> Iterator[Wait]:
    session = branch.session
    yield from _attempts(session)
    if name not in branch.variables and not session.may_send:
        yield Wait(lambda: name in branch.variables or session.body.ended)
