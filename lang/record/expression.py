"""Expressions, which can be appended to a program: generations, roles, images, and sequences of these and text."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from ...constrain.spec import GrammarSpec
from ...runtime.protocol.program import SelectMethod
from ..diagnostics.errors import ProgramError
from ..diagnostics.source_lines import Place, caller


class Expression:
    """Something to append; `+` puts several in a row. Nothing happens before it is appended to a state."""

    __slots__ = ()

    def __add__(self, other: str | Expression) -> Series:
        if not isinstance(other, str | Expression):
            return NotImplemented
        return Series((*items_of(self), *items_of(other)))

    def __radd__(self, other: str) -> Series:
        if not isinstance(other, str):
            return NotImplemented
        return Series((other, *items_of(self)))

    def __str__(self) -> str:
        raise ProgramError(
            f"{type(self).__name__} has no text yet, so it cannot stand in an f-string or be made a text: "
            'write s += "..." + expression + "..." instead',
            code="invalid_program",
            place=caller(),
        )

    def __format__(self, spec: str) -> str:
        return str(self)

    def __enter__(self) -> NoReturn:
        raise ProgramError(
            "only a state's messages can be blocks: write `with s.user():`", code="invalid_program", place=caller()
        )

    def __exit__(self, *_: object) -> None:
        """Never called: it cannot be entered."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"{type(self).__name__} has no text yet, and no {name!r}: append it, and read s[name]")


@dataclass(frozen=True, slots=True, eq=False)
class Generate(Expression):
    """Text to be generated. `convert` turns it into the value that is read, of the type `kind` if one was asked for."""

    name: str | None
    options: Mapping[str, Any]
    grammar: GrammarSpec | None
    convert: Callable[[str], Any]
    timeout_s: float | None
    place: Place
    kind: object = None


@dataclass(frozen=True, slots=True, eq=False)
class Choose(Expression):
    """One of `choices`, the likeliest."""

    name: str | None
    choices: tuple[str, ...]
    method: SelectMethod
    place: Place


@dataclass(frozen=True, slots=True, eq=False)
class RoleOpen(Expression):
    """Begins a message."""

    role: str


@dataclass(frozen=True, slots=True, eq=False)
class RoleClose(Expression):
    """Ends a message."""

    role: str


@dataclass(frozen=True, slots=True, eq=False)
class Picture(Expression):
    """An image, which only some backends take."""

    source: str | bytes


class Control(Expression):
    """Blocks that the engine decides on: a `when` or a `repeat_until`."""

    __slots__ = ()

    @abstractmethod
    def record_in(self, branch: Any) -> None:
        """Records it into a branch."""


@dataclass(frozen=True, slots=True, eq=False)
class Series(Expression):
    """Several things in a row."""

    items: tuple[str | Expression, ...]


def items_of(expression: str | Expression) -> Iterator[str | Expression]:
    """The parts of a series, or the one thing that it is."""
    if isinstance(expression, Series):
        yield from expression.items
    else:
        yield expression
