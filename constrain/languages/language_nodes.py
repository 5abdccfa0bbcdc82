"""Regular expressions over Unicode texts as shared immutable nodes: equal structure is the same object."""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from .charsets import CharSet

NodeT = TypeVar("NodeT", bound="Node")
Span = tuple[int, int | None]
"""At least and at most how many (None: no bound)."""


class Node:
    """A regular expression.

    minimum, maximum    bounds on the length of a word, in code points; not tight, but never wrong (None: no bound)
    depth               how deep the tree is
    plain               neither an intersection nor a complement is in it, so it is empty only if it has no texts
    first               sets of characters: no derivative of this node tells those apart that no set does
    """

    __slots__ = ("__weakref__", "depth", "first", "maximum", "minimum", "nullable", "plain")

    depth: int
    plain: bool

    def __init__(
        self,
        *,
        nullable: bool,
        bounds: Span,
        first: frozenset[CharSet],
        items: Sequence[Node] = (),
        plain: bool = True,
    ) -> None:
        self.nullable = nullable
        self.minimum, self.maximum = bounds
        self.first = first
        self.depth = 1 + max((item.depth for item in items), default=0)
        self.plain = plain and all(item.plain for item in items)


class Words(Node):
    """Finitely many texts, sorted. More than one of them are never all single characters: those are `Chars`."""

    __slots__ = ("texts",)

    def __init__(self, texts: tuple[str, ...]) -> None:
        lengths = [len(text) for text in texts] or [0]
        super().__init__(
            nullable=bool(texts) and not texts[0],
            bounds=(min(lengths), max(lengths)),
            first=frozenset(CharSet.of(char) for char in first_characters(texts)),
        )
        self.texts = texts


class Chars(Node):
    """One character of a set of at least two."""

    __slots__ = ("chars",)

    def __init__(self, chars: CharSet) -> None:
        super().__init__(nullable=False, bounds=(1, 1), first=frozenset((chars,)))
        self.chars = chars


class Concat(Node):
    """At least two expressions one after another, none of them a `Concat`."""

    __slots__ = ("items",)

    def __init__(self, items: tuple[Node, ...]) -> None:
        first: frozenset[CharSet] = frozenset()
        for item in items:
            first |= item.first
            if not item.nullable:
                break
        maxima = [item.maximum for item in items if item.maximum is not None]
        super().__init__(
            nullable=all(item.nullable for item in items),
            bounds=(sum(item.minimum for item in items), sum(maxima) if len(maxima) == len(items) else None),
            first=first,
            items=items,
        )
        self.items = items


class Union(Node):
    """At least two alternatives, none of them a `Union`."""

    __slots__ = ("items",)

    def __init__(self, items: tuple[Node, ...]) -> None:
        maxima = [item.maximum for item in items if item.maximum is not None]
        super().__init__(
            nullable=any(item.nullable for item in items),
            bounds=(min(item.minimum for item in items), max(maxima) if len(maxima) == len(items) else None),
            first=frozenset().union(*(item.first for item in items)),
            items=items,
        )
        self.items = items


class Intersection(Node):
    """What at least two expressions have in common; at most one of them is a `Complement`."""

    __slots__ = ("items",)

    def __init__(self, items: tuple[Node, ...]) -> None:
        super().__init__(
            nullable=all(item.nullable for item in items),
            bounds=common_bounds(items),
            first=frozenset().union(*(item.first for item in items)),
            items=items,
            plain=False,
        )
        self.items = items


class Complement(Node):
    """Every text but those of `item`."""

    __slots__ = ("item",)

    def __init__(self, item: Node) -> None:
        super().__init__(
            nullable=not item.nullable,
            bounds=(int(item.nullable), None),
            first=item.first,
            items=(item,),
            plain=False,
        )
        self.item = item


class Repeat(Node):
    """`item` from `low` to `high` times in a row (None: without end). `low` is 0 where `item` is nullable."""

    __slots__ = ("high", "item", "low")

    def __init__(self, item: Node, low: int, high: int | None) -> None:
        maximum = None if high is None or item.maximum is None else item.maximum * high
        super().__init__(
            nullable=low == 0,
            bounds=(item.minimum * low, maximum),
            first=item.first,
            items=(item,),
        )
        self.item, self.low, self.high = item, low, high


def first_characters(texts: tuple[str, ...]) -> list[str]:
    """The distinct first characters of sorted texts, ascending."""
    found = []
    at = bisect_left(texts, "\0")
    while at < len(texts):
        found.append(texts[at][0])
        at = bisect_left(texts, chr(ord(found[-1]) + 1), at) if ord(found[-1]) < 0x10FFFF else len(texts)
    return found


def common_bounds(items: Iterable[Node]) -> Span:
    """The bounds that all of `items` keep."""
    low, maxima = 0, []
    for item in items:
        low = max(low, item.minimum)
        if item.maximum is not None:
            maxima.append(item.maximum)
    return low, min(maxima, default=None)


def parts(node: Node) -> tuple[Node, ...]:
    """The expressions that `node` is made of."""
    match node:
        case Concat(items=items) | Union(items=items) | Intersection(items=items):
            return items
        case Complement(item=item) | Repeat(item=item):
            return (item,)
    return ()


def counted(node: Node) -> tuple[Node, int, int | None]:
    """`node` as a repeat: what, and how often."""
    return (node.item, node.low, node.high) if isinstance(node, Repeat) else (node, 1, 1)


_nodes: weakref.WeakValueDictionary[Hashable, Node] = weakref.WeakValueDictionary()
_nodes_lock = threading.Lock()


def interned(kind: type[NodeT], key: Hashable, make: Callable[[], NodeT]) -> NodeT:
    """The one node of this kind and key; two threads get the same one."""
    with _nodes_lock:
        found = _nodes.get((kind, key))
        if found is None:
            found = _nodes[kind, key] = make()
    assert isinstance(found, kind)
    return found
