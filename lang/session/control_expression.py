"""Blocks that can be appended to a program: one of two, or one several times."""

from __future__ import annotations

from dataclasses import dataclass

from ..record.condition import Condition
from ..record.expression import Expression
from .blocks import Record


@dataclass(frozen=True, slots=True, eq=False)
class Whether(Expression):
    """One of two blocks."""

    condition: Condition
    then: Record
    otherwise: Record


@dataclass(frozen=True, slots=True, eq=False)
class Repeated(Expression):
    """A block, executed until the condition holds after it."""

    body: Record
    until: Condition
    at_most: int
