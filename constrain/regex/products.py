"""Searches for words that some regular expressions have in common and others do not have.

A state is what is left of each expression after a beginning. The expressions are never combined: each keeps its own
derivatives, which few characters tell apart and which other searches have often asked for.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import count
from typing import NamedTuple, TypeAlias

from .algebra import ANY, EMPTY, chars
from .charsets import ALL, CharSet
from .derivatives import Derivatives
from .nodes import Complement, Intersection, Node, Repeat, Union, Words, common_bounds, lower, parts
from .partitions import partition

Matches: TypeAlias = Callable[[Node, str], bool]


class _State(NamedTuple):
    """Words of all of `wanted` and of none of `refused`, of `low` to `high` characters (None: no bound)."""

    wanted: tuple[Node, ...]
    refused: tuple[Node, ...]
    low: int
    high: int | None

    @property
    def accepts(self) -> bool:
        """The empty text is such a word."""
        return (
            self.low == 0
            and all(node.nullable for node in self.wanted)
            and not any(node.nullable for node in self.refused)
        )


def common_word(node: Node, derivatives: Derivatives, matches: Matches, *, shortest: bool) -> str | None:
    """A word of `node`, of characters that read well; None if there is none. Raises OutOfBudgetError.

    With `shortest` the search goes first where the bounds promise a shortest word; else where least seems to be left.
    """
    start = _state((node,), (), 0, None)
    if start is None:
        return None
    order = count(0, -1)  # of equals the last found first: on towards the end of a word
    queue = [(0, 0, 0, start, "")]
    reached = {start: 0}
    while queue:
        _, _, _, state, prefix = heapq.heappop(queue)
        if state.accepts:
            return prefix
        listed = next((item for item in state.wanted if isinstance(item, Words)), None)
        if listed is not None:
            found = _listed_word(state, listed, derivatives, matches)
            if found is not None:
                length = len(prefix) + len(found) if shortest else 0
                heapq.heappush(queue, (length, 0, next(order), _END, prefix + found))
            continue
        length = len(prefix) + 1
        for char, after in _following(state, derivatives):
            if after not in reached or (shortest and length < reached[after]):
                reached[after] = length
                minima = [after.low, *[node.minimum for node in after.wanted]]
                least = length + max(minima) if shortest else 0
                heapq.heappush(queue, (least, sum(minima), next(order), after, prefix + char))
    return None


def _following(state: _State, derivatives: Derivatives) -> Iterable[tuple[str, _State]]:
    """The states after one character, those of characters that read well last."""
    wanted, refused, low, high = state
    low, high = max(low - 1, 0), None if high is None else high - 1
    follow = derivatives.follow
    num_wanted = len(wanted)
    met: set[tuple[Node, ...]] = set()
    for char, numbers in _moves(tuple([node.first for node in (*wanted, *refused)])):
        derivatives.spend(1)
        left: list[Node] = []
        for node, number in zip(wanted, numbers, strict=False):
            after = follow(node, number)
            if after is EMPTY:
                break
            left.append(after)
        else:
            left += [follow(node, number) for node, number in zip(refused, numbers[num_wanted:], strict=True)]
            key = tuple(left)
            if key not in met:
                met.add(key)
                found = _state(left[:num_wanted], left[num_wanted:], low, high)
                if found is not None:
                    yield char, found


@lru_cache(maxsize=2048)
def _moves(firsts: tuple[frozenset[CharSet], ...]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """For each class that some of the expressions tell apart an example, and its class in each of them."""
    joint = partition(frozenset().union(*firsts))
    own = [partition(first) for first in firsts]
    return tuple((char, tuple([each.number(char) for each in own])) for char in reversed(joint.examples))


def _listed_word(state: _State, listed: Words, derivatives: Derivatives, matches: Matches) -> str | None:
    """A shortest of finitely many texts that is a word of the state."""
    wanted, refused, low, high = state
    for text in sorted(listed.texts, key=lambda text: (len(text), text)):
        derivatives.spend(len(wanted) + len(refused))
        if len(text) < low or (high is not None and len(text) > high):
            continue
        others = [node for node in wanted if node is not listed]
        if all(matches(node, text) for node in others) and not any(matches(node, text) for node in refused):
            return text
    return None


def _state(wanted: Iterable[Node], refused: Iterable[Node], low: int, high: int | None) -> _State | None:
    """The state, stated in one way; None if it is seen at once that it has no word."""
    some, others = _parted(wanted, refused)
    if EMPTY in some or ANY in others:
        return None
    others.pop(EMPTY, None)
    for node in [node for node in some if type(node) is Repeat and node.item is _ONE]:
        assert isinstance(node, Repeat)
        del some[node]
        low, high = max(low, node.low), lower(high, node.high)
    least, most = common_bounds(some)
    top = lower(high, most)
    if (top is not None and top < max(low, least)) or not some.keys().isdisjoint(others):
        return None
    if others and most is not None:
        others = {node: None for node in others if node.minimum <= most}
    # A length that is kept anyway is not counted.
    low, high = 0 if low <= least else low, high if most is None or top != most else None
    return _State(tuple(some), tuple(others), low, high)


def _parted(wanted: Iterable[Node], refused: Iterable[Node]) -> tuple[dict[Node, None], dict[Node, None]]:
    """The expressions without those that are but made of others by intersection and complement."""
    some: dict[Node, None] = {}
    others: dict[Node, None] = {}
    pending = [(node, True) for node in wanted]
    pending += [(node, False) for node in refused]
    for node, positive in pending:  # it grows while it is walked
        if isinstance(node, Complement):
            pending.append((node.item, not positive))
        elif isinstance(node, Intersection if positive else Union):
            pending += [(item, positive) for item in parts(node)]
        elif positive:
            some[node] = None
        else:
            others[node] = None
    return some, others


_ONE = chars(ALL)
_END = _State((), (), 0, None)
