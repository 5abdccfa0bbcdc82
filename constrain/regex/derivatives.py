"""Derivatives of regular expressions: what may follow a first character, and which characters need trying."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from .algebra import EMPTY, EPSILON, complement, concat, intersection, repeat, union, words
from .charsets import SURROGATES
from .nodes import Chars, Complement, Concat, Intersection, Node, Repeat, Union, Words

MAX_REMEMBERED: Final = 1 << 14
"""Derivatives that are kept for later searches."""


class OutOfBudgetError(Exception):
    """A search was given up; nothing is known."""


class Derivatives:
    """Derivatives within a budget that one search shares. `remaining` counts down by the effort of each that is new.

    All searches remember them together; what that saves does not count, so that no search depends on those before it.
    """

    def __init__(self, budget: int) -> None:
        self.remaining = budget
        self._known: dict[tuple[Node, int], Node] = {}

    def step(self, node: Node, char: str) -> Node:
        """What may follow `char` at the start of a word of `node`. Raises OutOfBudgetError."""
        if SURROGATES[0] <= ord(char) < SURROGATES[1]:
            return EMPTY
        return self.follow(node, node.partition.number(char))

    def follow(self, node: Node, number: int) -> Node:
        """The same for a character of class `number` of those that `node` tells apart."""
        key = (node, number)
        found = self._known.get(key)
        if found is None:
            self.spend(node.effort)
            found = self._known[key] = _remembered.get(key) or _derivative(node, number)
        return found

    def spend(self, units: int) -> None:
        """Takes `units` off the budget. Raises OutOfBudgetError when it is spent."""
        self.remaining -= units
        if self.remaining < 0:
            raise OutOfBudgetError


_remembered: dict[tuple[Node, int], Node] = {}


def _derivative(node: Node, number: int) -> Node:
    """What may follow class `number`. Parts come first, on a stack: expressions are deeper than Python recurs."""
    found: dict[Node, Node] = {}
    char = node.partition.examples[number]
    pending = [node]
    while pending:
        top = pending[-1]
        if top in found:
            pending.pop()
            continue
        key = (top, top.partition.number(char))
        known = _remembered.get(key)
        if known is None:
            needed = [item for item in _needed(top) if item not in found]
            if needed:
                pending += needed
                continue
            known = _derive(top, char, found)
            if len(_remembered) >= MAX_REMEMBERED:
                _remembered.clear()
            _remembered[key] = known
        found[top] = known
        pending.pop()
    return found[node]


def _derive(node: Node, char: str, known: dict[Node, Node]) -> Node:
    """What may follow `char`, as it is `known` for the parts that decide it."""
    match node:
        case Words(texts=texts):
            return _after(texts, char)
        case Chars(chars=members):
            return EPSILON if char in members else EMPTY
        case Concat(items=items):
            found = []
            for at, item in enumerate(items):
                if known[item] is not EMPTY:
                    found.append(concat((known[item], *items[at + 1 :])))
                if not item.nullable:
                    break
            return union(found)
        case Union(items=items):
            return union([known[item] for item in items])
        case Intersection(items=items):
            return intersection([known[item] for item in items])
        case Complement(item=item):
            return complement(known[item])
        case Repeat(item=item, low=low, high=high):
            if known[item] is EMPTY:
                return EMPTY
            return concat((known[item], repeat(item, max(low - 1, 0), None if high is None else high - 1)))
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
    return words([text[1:] for text in texts[start:stop]])
