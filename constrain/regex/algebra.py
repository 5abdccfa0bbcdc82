"""The constructors of regular expressions, which simplify what they are given.

They rewrite locally, with what the operands show at once; what takes a search is in `decisions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from .charsets import ALL, CharSet
from .nodes import (
    Chars,
    Complement,
    Concat,
    Intersection,
    Node,
    Repeat,
    Span,
    Union,
    Words,
    by_digest,
    common_bounds,
    counted,
    interned,
)

MAX_FACTORING = 16
"""How deep alternatives are factored: `ax|ay` to `a(x|y)`."""
MAX_COPIED = 64
"""Of a text that is repeated a fixed number of times: the length up to which it is written out."""


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
    """What is in any of the expressions."""
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
    """What all of the expressions have in common."""
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
