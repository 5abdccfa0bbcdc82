"""Text as it comes: one walk over what a branch holds, for threads and for tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from .branch import Branch
from .entry import Entry, Gathered, Passage, marks_of
from .reader import entry_of, over, read, value_of
from .session import Session
from .stretch import Slot, Stretch


class _Wait(NamedTuple):
    """The walk cannot go on before `done`; `stretch` is what it waits for, once that is known."""

    done: Callable[[], bool]
    stretch: Callable[[], Stretch | None]


def iterate(branch: Branch, name: str | None) -> Iterator[str]:
    """The text of a variable, or of a whole branch but for the chat template's, as it comes."""
    for item in _walk(branch, name):
        if isinstance(item, str):
            yield item
        else:
            branch.session.wait(*item)


async def aiterate(branch: Branch, name: str | None) -> AsyncIterator[str]:
    """The same for tasks."""
    for item in _walk(branch, name):
        if isinstance(item, str):
            yield item
        else:
            await branch.session.await_until(item.done)


async def aread(branch: Branch, name: str) -> Any:
    """The value of a variable, for tasks."""
    session = branch.session
    for wait in _until_known(branch, name):
        await session.await_until(wait.done)
    entry = entry_of(branch, name)
    for slot in _slots_of(entry):
        for wait in _until_over(branch, slot):
            await session.await_until(wait.done)
    return read(branch, entry)


def _walk(branch: Branch, name: str | None) -> Iterator[str | _Wait]:
    if name is not None:
        yield from _until_known(branch, name)
        for part in marks_of(name, entry_of(branch, name)):
            yield from _walk_mark(branch, part)
        return
    session, index = branch.session, 0
    while True:
        while index < len(branch.transcript):
            mark = branch.transcript[index]
            index += 1
            if isinstance(mark, str | Slot):
                yield from _walk_mark(branch, mark)
        session.raise_error()
        if session.may_send:
            return
        yield _Wait(partial(_longer, branch, index), _nothing)


def _walk_mark(branch: Branch, mark: str | Slot) -> Iterator[str | _Wait]:
    if isinstance(mark, str):
        yield mark
        return
    session, num_seen = branch.session, 0
    if mark.stretch is None:
        session.send()
    while True:
        new = "".join(mark.chunks)[num_seen:]
        if new:
            num_seen += len(new)
            yield new
        elif mark.value is not None:
            return
        elif over(session, mark) or session.error is not None:
            value_of(session, mark)  # raises, unless it has come just now
        else:
            yield _Wait(partial(_grown, session, mark, num_seen), lambda: mark.stretch)


def _longer(branch: Branch, num_marks: int) -> bool:
    return len(branch.transcript) > num_marks or branch.session.body_ended


def _grown(session: Session, slot: Slot, num_seen: int) -> bool:
    return over(session, slot) or sum(map(len, slot.chunks)) > num_seen


def _until_known(branch: Branch, name: str) -> Iterator[_Wait]:
    session = branch.session
    if name not in branch.variables and not session.may_send:
        yield _Wait(lambda: name in branch.variables or session.body_ended, _nothing)


def _until_over(branch: Branch, slot: Slot) -> Iterator[_Wait]:
    session = branch.session
    if slot.value is None:
        if slot.stretch is None:
            session.send()
        yield _Wait(lambda: over(session, slot), lambda: slot.stretch)


def _slots_of(entry: Entry) -> Iterator[Slot]:
    match entry:
        case Slot():
            yield entry
        case Passage(marks=marks):
            yield from (mark for mark in marks if isinstance(mark, Slot))
        case Gathered(entries=entries):
            for item in entries:
                if item is not None:
                    yield from _slots_of(item)


def _nothing() -> None:
    """Not known yet."""
