"""Regular expressions over Unicode texts as shared immutable nodes, and their constructors, which simplify.

Equal structure is the same object. The constructors rewrite locally, with what the operands show at once; what takes a
search is in `decisions`.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final, TypeVar
from zlib import crc32

from .charsets import ALL, CharSet, Partition, partition

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
    """Two expressions or more one after another, none of them a `Concat`."""

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
    """Two alternatives or more in order of their digests, none of them a `Union`."""

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
    """Intersection of at least two expressions, in order of their digests; at most one is a `Complement`."""

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


MAX_FACTORING = 16
"""Depth to which alternatives are factored: `ax|ay` to `a(x|y)`."""
MAX_COPIED = 64
"""Length up to which a text that is repeated a fixed number of times is written out."""


def words(texts: Iterable[str]) -> Node:
    """Exactly these texts."""
    unique = set(texts)
    if len(unique) > 1 and all(len(text) == 1 for text in unique):
        return chars(CharSet.of("".join(unique)))
    key = tuple(sorted(unique))
    return interned(Words, key, lambda: Words(key))


def chars(members: CharSet) -> Node:
    """One character of `members`."""
    if len(members) < 2:
        return words(members)
    return interned(Chars, members, lambda: Chars(members))


def repeat(item: Node, low: int, high: int | None) -> Node:
    """`item` from `low` to `high` times. Raises ValueError unless 0 <= low <= high."""
    if low < 0 or (high is not None and high < low):
        raise ValueError(f"a repeat needs 0 <= low <= high, got {low} and {high}")
    if item.nullable:
        low = 0
    if high == 0 or item is EPSILON or (item is EMPTY and low == 0):
        return EPSILON
    if (low == 1 and high == 1) or item is EMPTY:
        return item
    if isinstance(item, Repeat) and _counts_join(item, low, high):
        top = None if high is None or item.high is None else high * item.high
        return repeat(item.item, item.low * low, top)
    if isinstance(item, Words) and len(item.texts) == 1 and low == high and len(item.texts[0]) * low <= MAX_COPIED:
        return words([item.texts[0] * low])
    return interned(Repeat, (item, low, high), lambda: Repeat(item, low, high))


def _counts_join(item: Repeat, low: int, high: int | None) -> bool:
    """The counts that repeating a repeat adds up to have no gap."""
    if low == high or item.low == 0:
        return True
    if low == 0 or item.high is None:
        return item.low == 1 or low > 0
    return (low + 1) * item.low <= low * item.high + 1


def concat(items: Iterable[Node]) -> Node:
    """The expressions one after another."""
    found: list[Node] = []
    for part in _with_texts_joined(items):
        if part is EMPTY:
            return EMPTY
        joined = _joined(found[-1], part) if found else None
        if joined is None:
            found.append(part)
        else:
            found[-1] = joined
    if len(found) < 2:
        return found[0] if found else EPSILON
    key = tuple(found)
    return interned(Concat, key, lambda: Concat(key))


def _with_texts_joined(items: Iterable[Node]) -> Iterator[Node]:
    """The parts of a sequence, single texts in a row in one: there may be thousands."""
    run: list[str] = []
    for item in items:
        for part in item.items if isinstance(item, Concat) else (item,):
            if isinstance(part, Words) and len(part.texts) == 1:
                run.append(part.texts[0])
                continue
            if any(run):
                yield words(["".join(run)])
            run = []
            yield part
    if any(run):
        yield words(["".join(run)])


def _joined(a: Node, b: Node) -> Node | None:
    """`a` and then `b` as one repeat, if they repeat the same."""
    (base, low, high), (other, other_low, other_high) = counted(a), counted(b)
    if base is not other:
        return None
    return repeat(base, low + other_low, None if high is None or other_high is None else high + other_high)


def union(items: Iterable[Node], depth: int = 0) -> Node:
    """Returns the union of the expressions."""
    members = _flattened(items, Union)
    members.pop(EMPTY, None)
    if len(members) < 2:
        return next(iter(members), EMPTY)
    inner = [node.item for node in members if isinstance(node, Complement)]
    if ANY in members or any(_all_among(node, Union, members) for node in inner):
        return ANY
    if len(inner) > 1:
        members = {node: None for node in members if not isinstance(node, Complement)}
        return union([*members, complement(intersection(inner))])
    members = _alternatives(members)
    if len(members) > 1 and depth < MAX_FACTORING:
        members = _factored(members, depth)
    if len(members) < 2:
        return next(iter(members), EMPTY)
    key = by_digest(members)
    return interned(Union, key, lambda: Union(key))


def _alternatives(members: dict[Node, None]) -> dict[Node, None]:
    """The alternatives with all texts in one node, and all characters in another."""
    texts: set[str] = set()
    sets: list[CharSet] = []
    others: dict[Node, None] = {}
    for node in members:
        if isinstance(node, Words):
            texts.update(node.texts)
        elif isinstance(node, Chars):
            sets.append(node.chars)
        else:
            others[node] = None
    if sets:
        sets.append(CharSet.of("".join(text for text in texts if len(text) == 1)))
        texts = {text for text in texts if len(text) != 1}
        others[chars(CharSet.from_ranges(span for part in sets for span in part.ranges()))] = None
    if "" in texts and any(node.nullable for node in others):
        texts.discard("")
    elif "" in texts:
        for node in others:
            base, low, high = counted(node)
            if low == 1 and not isinstance(base, Intersection):
                texts.discard("")
                others = {repeat(base, 0, high) if other is node else other: None for other in others}
                break
    return {**others, words(texts): None} if texts else others


def _factored(members: dict[Node, None], depth: int) -> dict[Node, None]:
    """The alternatives with one beginning in one: `x{0,3}y|x{2,5}y` and `xy|xz`."""
    counts: dict[tuple[Node, tuple[Node, ...]], list[Span]] = {}
    for node in members:
        head, rest = (node.items[0], node.items[1:]) if isinstance(node, Concat) else (node, ())
        base, low, high = counted(head)
        counts.setdefault((base, rest), []).append((low, high))
    by_head: dict[Node, list[tuple[Node, ...]]] = {}
    for (base, rest), spans in counts.items():
        for low, high in _merged(spans):
            by_head.setdefault(repeat(base, low, high), []).append(rest)
    if len(by_head) == len(members):
        return members
    found: dict[Node, None] = {}
    for head, rests in by_head.items():
        tail = concat(rests[0]) if len(rests) == 1 else union(map(concat, rests), depth + 1)
        found[concat((head, tail))] = None
    return _flattened(found, Union)


def intersection(items: Iterable[Node]) -> Node:
    """Returns the intersection of the expressions."""
    members = _flattened(items, Intersection)
    members.pop(ANY, None)
    if len(members) < 2:
        return next(iter(members), ANY)
    excluded = [node.item for node in members if isinstance(node, Complement)]
    if EMPTY in members or any(_all_among(node, Intersection, members) for node in excluded):
        return EMPTY
    without = union(excluded)
    wanted = _same_characters([node for node in members if not isinstance(node, Complement)])
    listed = [node for node in wanted if isinstance(node, Words)]
    if listed:
        texts = set(listed[0].texts).intersection(*(node.texts for node in listed[1:]))
        if isinstance(without, Words):
            texts -= set(without.texts)
            without = EMPTY
        wanted = {words(texts): None, **{node: None for node in wanted if not isinstance(node, Words)}}
    single = next((node for node in wanted if isinstance(node, Chars)), None)
    if single is not None and isinstance(without, Chars):
        del wanted[single]
        wanted[chars(single.chars - without.chars)] = None
        without = EMPTY
    if without is not EMPTY:
        wanted[complement(without)] = None
        wanted = _flattened(wanted, Intersection)
    wanted = _without_idle_lengths(wanted)
    low, high = common_bounds(wanted)
    if EMPTY in wanted or (high is not None and high < low):
        return EMPTY
    if len(wanted) < 2:
        return next(iter(wanted), ANY)
    key = by_digest(wanted)
    return interned(Intersection, key, lambda: Intersection(key))


def _same_characters(members: list[Node]) -> dict[Node, None]:
    """The members with all that only say which characters, and how many, in one."""
    found: dict[Node, None] = {}
    common, count = ALL, 0
    lengths: list[Span] = [(0, None)]
    for node in members:
        uniform = _uniform(node)
        if uniform is None:
            found[node] = None
        else:
            common, lengths, count = common & uniform[0], _overlaps(lengths, uniform[1]), count + 1
    if count:
        found[_of_lengths(common, lengths)] = None
    return found


def _uniform(node: Node) -> tuple[CharSet, list[Span]] | None:
    """The characters, and the lengths, of the texts of `node` if it holds all texts that have both."""
    if node is EPSILON:
        return ALL, [(0, 0)]
    alternatives = node.items if isinstance(node, Union) else (node,)
    parts = [counted(item) for item in alternatives if item is not EPSILON]
    base = parts[0][0]
    if not isinstance(base, Chars) or any(part[0] is not base for part in parts):
        return None
    none: list[Span] = [(0, 0)] if EPSILON in alternatives else []
    return base.chars, _merged([*none, *(part[1:] for part in parts)])


def _of_lengths(members: CharSet, lengths: list[Span]) -> Node:
    return union(repeat(chars(members), *length) for length in lengths)


def _merged(spans: list[Span]) -> list[Span]:
    """`spans` in order, those that touch in one."""
    found: list[Span] = []
    for low, high in sorted(spans, key=lambda span: span[0]):
        if found:
            last_low, last_high = found[-1]
            if last_high is None or low <= last_high + 1:
                found[-1] = (last_low, None if last_high is None or high is None else max(last_high, high))
                continue
        found.append((low, high))
    return found


def _overlaps(some: list[Span], others: list[Span]) -> list[Span]:
    found: list[Span] = []
    for low, high in some:
        for other_low, other_high in others:
            top = other_high if high is None else high if other_high is None else min(high, other_high)
            if top is None or max(low, other_low) <= top:
                found.append((max(low, other_low), top))
    return found


def _gaps(lengths: list[Span]) -> list[Span]:
    """The lengths that are not among sorted `lengths`."""
    found: list[Span] = []
    start: int | None = 0
    for low, high in lengths:
        if start is not None and start < low:
            found.append((start, low - 1))
        start = None if high is None else high + 1
    return found if start is None else [*found, (start, None)]


def _without_idle_lengths(members: dict[Node, None]) -> dict[Node, None]:
    """The members without a bound on the length that the others keep anyway."""
    for node in members:
        base, low, high = counted(node)
        if isinstance(base, Chars) and base.chars == ALL and len(members) > 1:
            others = {other: None for other in members if other is not node}
            minimum, maximum = common_bounds(others)
            if minimum >= low and (high is None or (maximum is not None and maximum <= high)):
                return others
    return members


def complement(node: Node) -> Node:
    """Every text but those of `node`."""
    if isinstance(node, Complement):
        return node.item
    if node is EMPTY:
        return ANY
    uniform = _uniform(node)
    if uniform is not None and uniform[0] == ALL:
        return _of_lengths(ALL, _gaps(uniform[1]))
    return interned(Complement, node, lambda: Complement(node))


def _all_among(node: Node, kind: type[Union] | type[Intersection], members: dict[Node, None]) -> bool:
    """`node`, or each part of it, is among flattened `members`."""
    if isinstance(node, Union | Intersection) and isinstance(node, kind):
        return all(item in members for item in node.items)
    return node in members


def _flattened(items: Iterable[Node], kind: type[Union] | type[Intersection]) -> dict[Node, None]:
    found: dict[Node, None] = {}
    for item in items:
        if isinstance(item, Union | Intersection) and isinstance(item, kind):
            found.update(dict.fromkeys(item.items))
        else:
            found[item] = None
    return found


EMPTY: Final = words(())
EPSILON: Final = words(("",))
ANY: Final = repeat(chars(ALL), 0, None)
