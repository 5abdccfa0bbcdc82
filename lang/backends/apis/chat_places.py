"""Places of generations in a chat, as far as they are known before the program runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ....runtime.protocol.program import (
    CallTools,
    Fork,
    Gen,
    Join,
    Op,
    Repeat,
    RoleBegin,
    RoleEnd,
    Select,
    Text,
    Use,
    When,
)

Seen = Callable[[Gen | Select, "Shape"], None]


@dataclass(frozen=True, slots=True)
class Shape:
    """A branch at some point.

    role        of the open message
    begun       the open message holds something
    loose       there is text outside of messages
    messages    there are messages
    """

    role: str | None = None
    begun: bool = False
    loose: bool = False
    messages: bool = False

    def with_text(self) -> Shape:
        return replace(self, loose=True) if self.role is None else replace(self, begun=True)


class Shapes:
    """The branches of one program, from submission to submission."""

    def __init__(self) -> None:
        self._branches: dict[int, Shape] = {0: Shape()}

    def follow(self, ops: Iterable[Op], seen: Seen) -> None:
        """Goes through `ops`; `seen` is told of each generation and where it stands."""
        for op in ops:
            shape = self._branches.get(op.branch, Shape())
            match op:
                case Text(parts=parts):
                    shape = shape.with_text() if any(part != "" for part in parts) else shape
                case RoleBegin(role=role):
                    shape = replace(shape, role=role, begun=False, messages=True)
                case RoleEnd():
                    shape = replace(shape, role=None, begun=False)
                case Gen() | Select():
                    seen(op, shape)
                    shape = shape.with_text()
                case Use(append=True):
                    shape = shape.with_text()
                case CallTools():  # if there were calls, the next answer is a message of its own
                    shape = replace(shape, begun=False)
                case Fork(children=children):
                    self._branches |= dict.fromkeys(children, shape)
                case Join(children=children, mode="append"):
                    for child in children:
                        other = self._branches.get(child, shape)
                        shape = replace(other, loose=shape.loose or other.loose, begun=shape.begun or other.begun)
                case When(then=then, otherwise=otherwise):
                    self.follow(then, seen)
                    self.follow(otherwise, seen)
                    shape = self._branches.get(op.branch, shape)
                case Repeat(body=body):
                    self.follow(body, seen)
                    self.follow(body, seen)
                    shape = self._branches.get(op.branch, shape)
            self._branches[op.branch] = shape
