"""Expressions that can be appended to a program: generations, roles, images, and sequences of these and text."""

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
            f"{self._said()} has no text yet, so it cannot be used in an f-string, printed or converted to str: append "
            f'it in the body of a @bough.function, s += "..." + expression + "...", and then {self._read()}',
            code="invalid_program",
            place=caller(),
        )

    def _said(self) -> str:
        name = getattr(self, "name", None)
        word = {"Generate": "gen", "Choose": "select"}.get(type(self).__name__)
        return f"{word}({name!r})" if word and name else word or type(self).__name__

    def _read(self) -> str:
        name = getattr(self, "name", None)
        return f"read s[{name!r}]" if name else "read s[name]"

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
    """Text to be generated. `convert` turns it into the value that is read, of the type `kind` if one was asked for.

    retries   it is asked for so many times more if `convert` raises; None: it is not asked whether it does
    check     the user's own check is part of `convert`
    """

    name: str | None
    options: Mapping[str, Any]
    grammar: GrammarSpec | None
    convert: Callable[[str], Any]
    timeout_s: float | None
    place: Place
    kind: object = None
    retries: int | None = None
    check: bool = False


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
    """The parts of a series, also of one in it, or the one thing that it is."""
    if isinstance(expression, Series):
        for item in expression.items:
            yield from items_of(item)
    else:
        yield expression
