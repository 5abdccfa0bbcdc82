"""Conditions on generated values, written by the author of a program and decided by the engine while it runs."""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ...constrain.spec import Regex
from ...runtime.protocol import condition as runtime
from ...runtime.protocol.condition import as_text
from ..diagnostics.errors import ProgramError
from ..diagnostics.source_lines import caller
from ..types.schema import check_constraint
from .options import refuse_unknown

Relation = Literal["eq", "ne", "lt", "le", "gt", "ge", "contains"]
Literals = str | float


class Operand:
    """Something that the engine knows when the program runs. Comparing it gives a Condition, not a bool."""

    __slots__ = ()

    def __eq__(self, other: object) -> Condition:  # type: ignore[override]
        return _compared(self, "eq", other)

    def __ne__(self, other: object) -> Condition:  # type: ignore[override]
        return _compared(self, "ne", other)

    def __lt__(self, other: object) -> Condition:
        return _compared(self, "lt", other)

    def __le__(self, other: object) -> Condition:
        return _compared(self, "le", other)

    def __gt__(self, other: object) -> Condition:
        return _compared(self, "gt", other)

    def __ge__(self, other: object) -> Condition:
        return _compared(self, "ge", other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise _not_known()

    def lowered(self) -> runtime.Operand:
        """Returns what the engine gets for it, of operands that need nothing of a branch for that."""
        raise _not_known()

    def contains(self, text: str | Operand) -> Condition:
        """Its text contains `text`."""
        return _compared(self, "contains", text)

    def matches(self, pattern: str) -> Condition:
        """Its whole text matches a regular expression, of the syntax that `regex=` takes."""
        if not isinstance(pattern, str):
            raise ProgramError(
                f"matches() takes a pattern as text, got {type(pattern).__name__}",
                code="invalid_program",
                place=caller(),
            )
        refuse_unknown("pattern", pattern)
        check_constraint(Regex(pattern), "pattern")
        return Match(self, pattern)


class UndecidedError(ProgramError):
    """Python was to decide by a condition that only the run of the program decides."""


Lower = Callable[[Operand], runtime.Operand]
Exchange = Callable[[Operand], Operand]


class Condition:
    """Condition that holds or not once the program runs; `&`, `|` and `~` make others of it.

    >>> bough.when((s.ref("age") >= 18) & ~s.ref("country").matches("US|CA"), adult, child)
    """

    __slots__ = ()

    def __and__(self, other: Condition) -> Condition:
        return EveryOf((self, _checked(other)))

    def __or__(self, other: Condition) -> Condition:
        return EitherOf((self, _checked(other)))

    def __invert__(self) -> Condition:
        return NotOf(self)

    def __bool__(self) -> bool:
        raise _not_known()

    @abstractmethod
    def over(self, exchange: Exchange) -> Condition:
        """The same with other operands."""

    @abstractmethod
    def lower(self, lower: Lower) -> runtime.Condition:
        """The condition as the engine gets it."""


@dataclass(frozen=True, slots=True, eq=False)
class Comparison(Condition):
    left: Operand
    relation: Relation
    right: Operand | Literals

    def over(self, exchange: Exchange) -> Condition:
        right = self.right
        return Comparison(exchange(self.left), self.relation, exchange(right) if isinstance(right, Operand) else right)

    def lower(self, lower: Lower) -> runtime.Condition:
        left = lower(self.left)
        right = lower(self.right) if isinstance(self.right, Operand) else self.right
        if isinstance(self.right, str) and isinstance(left, float):
            left = as_text(left)  # who compares with a text means a text
        return runtime.Compare(left, self.relation, right)


@dataclass(frozen=True, slots=True, eq=False)
class Match(Condition):
    text: Operand
    pattern: str

    def over(self, exchange: Exchange) -> Condition:
        return Match(exchange(self.text), self.pattern)

    def lower(self, lower: Lower) -> runtime.Condition:
        text = lower(self.text)
        if isinstance(text, float):
            text = as_text(text)
        if not isinstance(text, str | runtime.Ref | runtime.Hole):
            raise ProgramError("matches() needs a text: this is a count", code="invalid_program", place=caller())
        return runtime.Matches(text, self.pattern)


@dataclass(frozen=True, slots=True, eq=False)
class EveryOf(Condition):
    of: tuple[Condition, ...]

    def over(self, exchange: Exchange) -> Condition:
        return EveryOf(tuple(item.over(exchange) for item in self.of))

    def lower(self, lower: Lower) -> runtime.Condition:
        return runtime.Every(tuple(item.lower(lower) for item in self.of))


@dataclass(frozen=True, slots=True, eq=False)
class EitherOf(Condition):
    of: tuple[Condition, ...]

    def over(self, exchange: Exchange) -> Condition:
        return EitherOf(tuple(item.over(exchange) for item in self.of))

    def lower(self, lower: Lower) -> runtime.Condition:
        return runtime.Either(tuple(item.lower(lower) for item in self.of))


@dataclass(frozen=True, slots=True, eq=False)
class NotOf(Condition):
    of: Condition

    def over(self, exchange: Exchange) -> Condition:
        return NotOf(self.of.over(exchange))

    def lower(self, lower: Lower) -> runtime.Condition:
        return runtime.Negation(self.of.lower(lower))


@dataclass(frozen=True, slots=True, eq=False)
class TimesOf(Operand):
    """Number of times that the generation called `name` has been done."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class CountOf(Operand):
    """Number of the conditions that hold."""

    of: tuple[Condition, ...]


def literal(value: object) -> Literals:
    """A Python value as the engine compares it: numbers as numbers, all else by its text.

    Raises:
        ProgramError: it is nothing that a text could be compared with.
    """
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str):
        return value
    raise ProgramError(
        f"a value of the program can be compared with text, a number, a bool or another value, "
        f"not with {type(value).__name__}",
        code="invalid_program",
        place=caller(),
    )


def _compared(left: Operand, relation: Relation, right: Any) -> Condition:
    if relation == "contains" and not isinstance(right, str | Operand):
        raise ProgramError(f"contains() takes text, got {type(right).__name__}", code="invalid_program", place=caller())
    return Comparison(left, relation, right if isinstance(right, Operand) else literal(right))


def _checked(other: object) -> Condition:
    if not isinstance(other, Condition):
        raise ProgramError(
            f"a condition can only be combined with another condition, got {type(other).__name__}",
            code="invalid_program",
            place=caller(),
        )
    return other


def _not_known() -> UndecidedError:
    return UndecidedError(
        "whether this holds is not known while the program is recorded: use bough.when or bough.repeat_until, where "
        "conditions are combined with &, | and ~ (not with and, or, not, in), or read the value with s[name] and "
        "compare that",
        code="invalid_program",
        place=caller(),
    )
