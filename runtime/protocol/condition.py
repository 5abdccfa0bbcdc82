"""Conditions on generated values that the engine itself can decide: what When and Repeat ask."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Name = Annotated[str, msgspec.Meta(max_length=256)]
"""Of a value, a tool, an argument; errors quote names. The bound holds where programs come in as data."""

Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""What goes into a message between processes."""


class Ref(msgspec.Struct, frozen=True, tag="ref"):
    """A value made earlier, by name, in a branch: it is put in by the engine once it is there."""

    branch: Int
    name: Name


class Hole(msgspec.Struct, frozen=True, tag="hole"):
    """An argument of a program template, written as `format(argument, spec)`. No engine takes a program with holes."""

    name: Name
    spec: str = ""


class Times(msgspec.Struct, frozen=True, tag="times"):
    """How many values of this name the branch has made."""

    branch: Int
    name: Name


class Count(msgspec.Struct, frozen=True, tag="count"):
    """How many of the conditions hold."""

    of: tuple[Condition, ...]


Operand = str | float | Ref | Hole | Times | Count


class Compare(msgspec.Struct, frozen=True, tag="compare"):
    """Compares two operands: as numbers if either is a number (text that is none makes it false, "ne" true), else as
    texts without the white space around them. "contains" asks whether the left text contains the right one."""

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
