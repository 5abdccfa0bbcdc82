"""Regular expressions over Unicode texts as shared immutable nodes: equal structure is the same object."""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Final, TypeVar
from zlib import crc32

from .charsets import CharSet
from .partitions import Partition, partition

NodeT = TypeVar("NodeT", bound="Node")
Span = tuple[int, int | None]
"""At least and at most how many (None: no bound)."""

MAX_EFFORT: Final = 1 << 20


class Node:
    """A regular expression.

    minimum, maximum    bounds on the length of a word, in code points; not tight, but never wrong (None: no bound)
    depth               how deep the tree is
    plain               neither an intersection nor a complement is in it, so it is empty only if it has no texts
    first               sets of characters: no derivative of this node tells those apart that no set does
    effort              about how many parts a derivative is made of
    digest              the same for equal structure in every process: alternatives are in its order
    """

    __slots__ = (
        "__weakref__",
        "_partition",
        "depth",
        "digest",
        "effort",
        "first",
        "maximum",
        "minimum",
        "nullable",
        "plain",
    )

    _partition: Partition | None
    nullable: bool
    minimum: int
    maximum: int | None
    first: frozenset[CharSet]
    depth: int
    plain: bool
    effort: int
    digest: int

    @property
    def partition(self) -> Partition:
        """The classes of characters that need to be told apart."""
        found = self._partition
        if found is None:
            found = self._partition = partition(self.first)
        return found

    def _place(self, items: Sequence[Node], needed: Sequence[Node]) -> None:
        """Sets what follows from the parts; the derivative is made of those of `needed`."""
        self._partition = None
        depth, plain, effort = 0, True, 1
        for item in items:
            if item.depth > depth:
                depth = item.depth
            plain = plain and item.plain
        for item in needed:
            effort += 1 + item.effort
        self.depth, self.plain, self.effort = depth + 1, plain, min(effort, MAX_EFFORT)


class Words(Node):
    """Finitely many texts, sorted. More than one of them are never all single characters: those are `Chars`."""

    __slots__ = ("texts",)

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._partition = None
        self.depth, self.plain, self.effort = 1, True, 1 + (len(texts) >> 4)
        self.digest = hash((1, crc32("\0".join(texts).encode(errors="surrogatepass")), len(texts)))
        self.nullable = bool(texts) and not texts[0]
        self.minimum, self.maximum = (min(map(len, texts)), max(map(len, texts))) if texts else (0, 0)
        self.first = frozenset([CharSet.single(char) for char in first_characters(texts)])
        self.texts = texts


class Chars(Node):
    """One character of a set of at least two."""

    __slots__ = ("chars",)

    def __init__(self, chars: CharSet) -> None:
        self._place((), ())
        self.digest = hash((2, chars))
        self.nullable, self.minimum, self.maximum = False, 1, 1
        self.first = frozenset((chars,))
        self.chars = chars


class Concat(Node):
    """At least two expressions one after another, none of them a `Concat`."""

    __slots__ = ("items",)

    def __init__(self, items: tuple[Node, ...]) -> None:
        count = next((at for at, item in enumerate(items, 1) if not item.nullable), len(items))
        needed = items[:count]
        self._place(items, needed)
        self.digest = hash((3, *[item.digest for item in items]))
        self.nullable = count == len(items) and items[-1].nullable
        self.minimum = sum([item.minimum for item in items])
        maxima = [item.maximum for item in items if item.maximum is not None]
        self.maximum = sum(maxima) if len(maxima) == len(items) else None
        self.first = _firsts(needed)
        self.items = items


class Union(Node):
    """At least two alternatives in order of their digests, none of them a `Union`."""

    __slots__ = ("items",)

    def __init__(self, items: tuple[Node, ...]) -> None:
        self._place(items, items)
        self.digest = hash((4, *[item.digest for item in items]))
        self.nullable = any(item.nullable for item in items)
        self.minimum = min([item.minimum for item in items])
        maxima = [item.maximum for item in items if item.maximum is not None]
        self.maximum = max(maxima) if len(maxima) == len(items) else None
        self.first = _firsts(items)
        self.items = items


class Intersection(Node):
    """What at least two expressions have in common, in order of their digests; at most one is a `Complement`."""

    __slots__ = ("items",)

    def __init__(self, items: tuple[Node, ...]) -> None:
        self._place(items, items)
        self.digest = hash((5, *[item.digest for item in items]))
        self.nullable = all(item.nullable for item in items)
        self.minimum, self.maximum = common_bounds(items)
        self.first = _firsts(items)
        self.plain = False
        self.items = items


class Complement(Node):
    """Every text but those of `item`."""

    __slots__ = ("item",)

    def __init__(self, item: Node) -> None:
        self._place((item,), (item,))
        self.digest = hash((6, item.digest))
        self.nullable = not item.nullable
        self.minimum, self.maximum = int(item.nullable), None
        self.first = item.first
        self.plain = False
        self.item = item


class Repeat(Node):
    """`item` from `low` to `high` times in a row (None: without end). `low` is 0 where `item` is nullable."""

    __slots__ = ("high", "item", "low")

    def __init__(self, item: Node, low: int, high: int | None) -> None:
        self._place((item,), (item,))
        self.digest = hash((7, item.digest, low, -1 if high is None else high))
        self.nullable = low == 0
        self.minimum = item.minimum * low
        self.maximum = None if high is None or item.maximum is None else item.maximum * high
        self.first = item.first
        self.item, self.low, self.high = item, low, high


def _firsts(items: Sequence[Node]) -> frozenset[CharSet]:
    first = items[0].first
    return first.union(*[item.first for item in items[1:]]) if len(items) > 1 else first


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
    low, high = 0, None
    for item in items:
        if item.minimum > low:
            low = item.minimum
        high = lower(high, item.maximum)
    return low, high


def lower(first: int | None, second: int | None) -> int | None:
    """The stricter of two upper bounds."""
    if first is None or (second is not None and second < first):
        return second
    return first


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


def by_digest(items: Iterable[Node]) -> tuple[Node, ...]:
    """`items` in an order that does not depend on what was built before."""
    return tuple(sorted(items, key=_DIGEST))


_DIGEST = attrgetter("digest")


def interned(kind: type[NodeT], key: Hashable, make: Callable[[], NodeT]) -> NodeT:
    """The one node of this kind and key; two threads get the same one."""
    with _nodes_lock:
        found = _nodes.get((kind, key))
        if found is None:
            found = _nodes[kind, key] = make()
    assert isinstance(found, kind)
    return found
