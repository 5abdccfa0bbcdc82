"""What a variable of a program holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..runtime.program import Ref
from .errors import ProgramError
from .expression import RoleClose, RoleOpen
from .stretch import Slot

Mark = str | Slot | RoleOpen | RoleClose
"""An element of a branch's transcript."""


@dataclass(frozen=True, eq=False, slots=True)
class Fixed:
    """A value that the program assigned."""

    value: object


@dataclass(frozen=True, eq=False, slots=True)
class Passage:
    """What was appended inside a `var_scope`, without the chat template's own text."""

    marks: tuple[str | Slot, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Gathered:
    """The variables of joined branches, in their order; None for one that has no such variable."""

    entries: tuple[Entry | None, ...]


Entry = Slot | Fixed | Passage | Gathered


def marks_of(name: str, entry: Entry) -> tuple[str | Slot, ...]:
    """An entry as elements of a transcript.

    Raises:
        ProgramError: it has no one text.
    """
    match entry:
        case Slot():
            return (entry,)
        case Fixed(value=value):
            return (str(value),)
        case Passage(marks=marks):
            return marks
        case Gathered():
            raise ProgramError(
                f"{name!r} is a list, gathered from several branches: refer to one of them with s.ref({name!r}, index)",
                code="invalid_program",
            )


def parts_of(marks: tuple[str | Slot, ...]) -> Iterator[str | Ref]:
    """Elements of a transcript as parts of a Text."""
    for mark in marks:
        yield mark if isinstance(mark, str) else Ref(mark.branch, mark.name)
