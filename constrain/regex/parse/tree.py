"""Regular expressions as they are read: expressions whose anchors, boundaries and look-around are not yet resolved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..algebra import EPSILON, concat, repeat, union
from ..nodes import Node


class Tree:
    """An expression that may hold assertions."""

    items: Sequence[Tree] = ()

    depth: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", 1 + max((item.depth for item in self.items), default=0))


@dataclass(frozen=True)
class Leaf(Tree):
    """An expression without assertions."""

    node: Node


@dataclass(frozen=True)
class Sequenced(Tree):
    """One after another."""

    items: tuple[Tree, ...]


@dataclass(frozen=True)
class Alternatives(Tree):
    """One of several."""

    items: tuple[Tree, ...]


@dataclass(frozen=True)
class Repeated(Tree):
    """From `low` to `high` times (None: without end)."""

    item: Tree
    low: int
    high: int | None

    @property
    def items(self) -> tuple[Tree, ...]:  # type: ignore[override]
        return (self.item,)


@dataclass(frozen=True)
class Edge(Tree):
    """The start or else the end of the text, with `lines` of a line."""

    start: bool
    lines: bool = False


@dataclass(frozen=True)
class Boundary(Tree):
    """Between a word character and another, or not."""

    negated: bool


@dataclass(frozen=True)
class Look(Tree):
    """What must, or must not, stand here (`ahead`) or before."""

    item: Tree
    ahead: bool
    negated: bool

    @property
    def items(self) -> tuple[Tree, ...]:  # type: ignore[override]
        return (self.item,)


def sequenced(items: Iterable[Tree]) -> Tree:
    """`items` one after another, those without assertions in one."""
    found: list[Tree] = []
    nodes: list[Node] = []
    for item in items:
        for part in item.items if isinstance(item, Sequenced) else (item,):
            if isinstance(part, Leaf):
                nodes.append(part.node)
                continue
            if nodes:
                found.append(Leaf(concat(nodes)))
                nodes = []
            found.append(part)
    if nodes or not found:
        found.append(Leaf(concat(nodes)))
    return found[0] if len(found) == 1 else Sequenced(tuple(found))


def alternatives(items: Sequence[Tree]) -> Tree:
    """One of `items`."""
    leaves = [item.node for item in items if isinstance(item, Leaf)]
    others = [item for item in items if not isinstance(item, Leaf)]
    if leaves:
        others.append(Leaf(union(leaves)))
    return others[0] if len(others) == 1 else Alternatives(tuple(others))


def repeated(item: Tree, low: int, high: int | None) -> Tree:
    """`item` from `low` to `high` times."""
    if isinstance(item, Leaf):
        return Leaf(repeat(item.node, low, high))
    if isinstance(item, Edge | Boundary | Look):  # once is as good as often
        return item if low else Leaf(EPSILON)
    return Repeated(item, low, high)
