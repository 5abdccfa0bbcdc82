"""References to variables: what stands for a value before it is there."""

from __future__ import annotations

from dataclasses import dataclass

from ..record.condition import Operand
from ..record.expression import Expression
from ..record.variables import Entry
from .session import Session


@dataclass(frozen=True, slots=True, eq=False)
class Reference(Expression, Operand):
    """The text of a variable, put in by the engine once it is there. Reads nothing. Compared, it makes a Condition."""

    name: str
    entry: Entry
    session: Session

    def __repr__(self) -> str:
        return f"<reference to {self.name!r}>"


@dataclass(frozen=True, slots=True, eq=False)
class Variable(Expression, Operand):
    """The same, looked up by its name where it is used."""

    name: str
