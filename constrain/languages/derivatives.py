"""Derivatives of regular expressions: what may follow a first character, and which characters need trying."""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from itertools import pairwise

from .charsets import ALL, END, READABLE, CharSet
from .language_algebra import EMPTY, EPSILON, complement, concat, intersection, repeat, union, words
from .language_nodes import Chars, Complement, Concat, Intersection, Node, Repeat, Union, Words


class OutOfBudgetError(Exception):
    """A search was given up; nothing is known."""


class Derivatives:
    """Derivatives with a memory and a budget, which one search shares. `remaining` counts down per node visited."""

    def __init__(self, budget: int) -> None:
        self.remaining = budget
        self._known: dict[tuple[Node, str], Node] = {}

    def step(self, node: Node, char: str) -> Node:
        """What may follow `char` at the start of a word of `node`. Raises OutOfBudgetError."""
        known = self._known
        pending = [node]
        while pending:
            top = pending[-1]
            if (top, char) in known:
                pending.pop()
                continue
            needed = [item for item in _needed(top) if (item, char) not in known]
            if needed:
                pending += needed
                continue
            self.spend(1)
            known[top, char] = self._derive(top, char)
            pending.pop()
        return known[node, char]

    def spend(self, units: int) -> None:
        """Takes `units` off the budget. Raises OutOfBudgetError when it is spent."""
        self.remaining -= units
        if self.remaining < 0:
            raise OutOfBudgetError

    def _derive(self, node: Node, char: str) -> Node:
        known = self._known
        match node:
            case Words(texts=texts):
                self.spend(len(texts) >> 4)
                return _after(texts, char)
            case Chars(chars=members):
                return EPSILON if char in members else EMPTY
            case Concat(items=items):
                found = []
                for at, item in enumerate(items):
                    found.append(concat((known[item, char], *items[at + 1 :])))
                    if not item.nullable:
                        break
                return union(found)
            case Union(items=items):
                self.spend(len(items))
                return union(known[item, char] for item in items)
            case Intersection(items=items):
                self.spend(len(items))
                return intersection(known[item, char] for item in items)
            case Complement(item=item):
                return complement(known[item, char])
            case Repeat(item=item, low=low, high=high):
                rest = repeat(item, max(low - 1, 0), None if high is None else high - 1)
                return concat((known[item, char], rest))
        raise TypeError(f"no such expression: {node!r}")


def _needed(node: Node) -> tuple[Node, ...]:
    """The parts whose derivatives the derivative of `node` is made of."""
    match node:
        case Concat(items=items):
            count = next((at for at, item in enumerate(items, 1) if not item.nullable), len(items))
            return items[:count]
        case Union(items=items) | Intersection(items=items):
            return items
        case Complement(item=item) | Repeat(item=item):
            return (item,)
    return ()


def _after(texts: tuple[str, ...], char: str) -> Node:
    start = bisect_left(texts, char)
    stop = len(texts)
    if ord(char) < 0x10FFFF:
        stop = bisect_left(texts, chr(ord(char) + 1), start)
    return words(text[1:] for text in texts[start:stop])


@lru_cache(maxsize=4096)
def classes(sets: frozenset[CharSet]) -> tuple[CharSet, ...]:
    """The fewest sets that part all characters so that each lies wholly inside or outside of each of `sets`.

    Those of letters and digits come first.
    """
    toggles: dict[int, int] = {}
    for index, members in enumerate((ALL, *sorted(sets, key=lambda members: members.boundaries))):
        for point in members.boundaries:
            toggles[point] = toggles.get(point, 0) ^ (1 << index)
    points = sorted(toggles)
    signature = 0
    spans: dict[int, list[tuple[int, int]]] = {}
    for start, stop in pairwise(points):
        signature ^= toggles[start]
        if signature & 1:
            spans.setdefault(signature, []).append((start, stop))
    found = [CharSet.from_ranges(ranges) for ranges in spans.values()]
    return tuple(sorted(found, key=lambda members: READABLE.find(members.readable()) % END))
