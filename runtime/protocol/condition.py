"""Conditions on generated values, for When and Repeat, and their evaluation.

Pure: values are requested from the caller.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal, Protocol

import msgspec

from .errors import BoughError, RequestError

MAX_DEPTH = 32
MAX_NUMBER_CHARS = 64

Name = Annotated[str, msgspec.Meta(max_length=256)]
"""Name of a value, a tool or an argument; errors quote names. The limit applies to programs received as data."""

Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Integers that fit into a message between processes."""


class Ref(msgspec.Struct, frozen=True, tag="ref"):
    """Reference to a value made earlier in a branch, by name; the engine inserts it once it exists."""

    branch: Int
    name: Name


class Hole(msgspec.Struct, frozen=True, tag="hole"):
    """An argument of a program template, written as `format(argument, spec)`. No engine takes a program with holes."""

    name: Name
    spec: str = ""


class Times(msgspec.Struct, frozen=True, tag="times"):
    """Number of values of this name that the branch has made."""

    branch: Int
    name: Name


class Count(msgspec.Struct, frozen=True, tag="count"):
    """Number of the conditions that hold."""

    of: tuple[Condition, ...]


Operand = str | float | Ref | Hole | Times | Count


class Compare(msgspec.Struct, frozen=True, tag="compare"):
    """Compares two operands: as numbers if either is a number (text that is not a number makes it false, "ne" true),
    else as texts without the white space around them. "contains" is true if the left text contains the right one."""

    left: Operand
    relation: Literal["eq", "ne", "lt", "le", "gt", "ge", "contains"]
    right: Operand


class Matches(msgspec.Struct, frozen=True, tag="matches"):
    """The whole text matches a regular expression (of the same syntax as `regex=`)."""

    text: str | Ref | Hole
    pattern: str


class Every(msgspec.Struct, frozen=True, tag="every"):
    """All of the conditions hold."""

    of: tuple[Condition, ...]


class Either(msgspec.Struct, frozen=True, tag="either"):
    """At least one of the conditions holds."""

    of: tuple[Condition, ...]


class Negation(msgspec.Struct, frozen=True, tag="negation"):
    """The condition does not hold."""

    of: Condition


Condition = Compare | Matches | Every | Either | Negation

SHORT_TEXT, MEDIUM_TEXT = 2500, 30_000
"""Lengths of texts below which CPython searches for any part, or a short one, by trying each place."""

TINY_PART, SHORT_PART = 6, 100
"""Lengths of such parts: a tiny one is searched for in this way in any text."""

LINEAR_COST = 16
"""Pairs of characters compared in the time that the linear algorithm takes per character."""

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_RELATIONS = {
    "eq": lambda left, right: left == right,
    "ne": lambda left, right: left != right,
    "lt": lambda left, right: left < right,
    "le": lambda left, right: left <= right,
    "gt": lambda left, right: left > right,
    "ge": lambda left, right: left >= right,
}


class NotYetError(Exception):
    """Requested values do not exist yet: all of `of`, if known."""

    def __init__(self, *of: Ref | Times) -> None:
        super().__init__()
        self.of = of


class KnownValues(Protocol):
    """Values that a condition may read. `text` and `times` raise NotYetError while the result may still change."""

    def text(self, ref: Ref) -> str: ...

    def times(self, name: Times) -> int: ...

    def contains(self, text: str, part: str) -> bool: ...

    def matches(self, pattern: str, text: str) -> bool: ...


def holds(condition: Condition, values: KnownValues) -> bool:
    """Evaluates `condition` from left to right; values that no longer matter are not read.

    Raises:
        NotYetError: a decisive value does not exist yet.
    """
    match condition:
        case Compare(left=left, relation=relation, right=right):
            sides = _value(left, values), _value(right, values)
            if relation == "contains":
                return values.contains(*map(as_text, sides))
            return _compare(sides[0], relation, sides[1])
        case Matches(text=text, pattern=pattern):
            return values.matches(pattern, str(_value(text, values)))
        case Every(of=of):
            return all(holds(each, values) for each in of)
        case Either(of=of):
            return any(holds(each, values) for each in of)
        case Negation(of=inner):
            return not holds(inner, values)


def nodes(condition: Condition) -> Iterator[Condition | Operand]:
    """Yields all conditions and operands in `condition`, itself first.

    Raises:
        RequestError: they are nested too deeply.
    """
    stack: list[tuple[Condition | Operand, int]] = [(condition, 1)]
    while stack:
        node, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise RequestError(f"conditions may be nested {MAX_DEPTH} levels deep", code="invalid_program", param="ops")
        yield node
        match node:
            case Every(of=of) | Either(of=of) | Count(of=of):
                stack.extend((inner, depth + 1) for inner in reversed(of))
            case Negation(of=single):
                stack.append((single, depth + 1))
            case Compare(left=left, right=right):
                stack += [(right, depth + 1), (left, depth + 1)]
            case Matches(text=text):
                stack.append((text, depth + 1))


def search_cost(text: str, part: str) -> int:
    """Returns the most pairs of characters that a search for `part` in `text` may compare.

    CPython tries each place in a short text, or for a short part; else its algorithm takes time linear in the text.
    """
    num_places = len(text) - len(part) + 1
    if num_places <= 0:
        return 0
    if len(text) < SHORT_TEXT or (len(part) < SHORT_PART and len(text) < MEDIUM_TEXT) or len(part) < TINY_PART:
        return num_places * max(len(part), 1)
    return LINEAR_COST * len(text)


def as_number(text: str) -> float | None:
    """Returns the decimal number in `text`, ignoring white space around it; None if it is not one."""
    text = text.strip()
    if len(text) > MAX_NUMBER_CHARS or _NUMBER.fullmatch(text) is None:
        return None
    return float(text)


def as_text(value: str | float) -> str:
    """Returns a value as text; numbers in their shortest form: 3, not 3.0."""
    if isinstance(value, str):
        return value
    whole = isinstance(value, int) or value.is_integer()
    return str(int(value)) if whole else repr(value)


def _value(operand: Operand, values: KnownValues) -> str | float:
    match operand:
        case Ref():
            return values.text(operand)
        case Times():
            return values.times(operand)
        case Count(of=of):
            return _count(of, values)
        case Hole(name=name):
            raise RequestError(f"the argument {name!r} was not put in", code="invalid_program", param="ops")
        case _:
            return operand


def _count(of: tuple[Condition, ...], values: KnownValues) -> int:
    """Counts the conditions that hold. All must be known, so missing values are reported together."""
    number, lacking = 0, list[Ref | Times]()
    waits = False
    for each in of:
        try:
            number += holds(each, values)
        except NotYetError as error:
            waits = True
            lacking += error.of
        except BoughError:
            if not waits:
                raise
            break  # what is before it may say something else
    if waits:
        raise NotYetError(*lacking)
    return number


def _compare(left: str | float, relation: str, right: str | float) -> bool:
    if isinstance(left, str) and isinstance(right, str):
        return bool(_RELATIONS[relation](left.strip(), right.strip()))
    numbers = [as_number(side) if isinstance(side, str) else side for side in (left, right)]
    if None in numbers:
        return relation == "ne"
    return bool(_RELATIONS[relation](*numbers))
