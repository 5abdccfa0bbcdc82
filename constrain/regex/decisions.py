"""Decides about regular expressions: membership, emptiness, a shortest word, all words, words in common.

All of it works with derivatives: what may follow a first character, and which characters need trying. A search for
words that some expressions have and others do not have never combines them: its state is what is left of each after a
beginning, which few characters tell apart and which other searches have often asked for.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import count
from typing import Final, NamedTuple, TypeAlias

from .algebra import (
    ANY,
    EMPTY,
    EPSILON,
    Chars,
    Complement,
    Concat,
    Intersection,
    Node,
    Repeat,
    Union,
    Words,
    chars,
    common_bounds,
    complement,
    concat,
    intersection,
    lower,
    parts,
    repeat,
    union,
    words,
)
from .charsets import ALL, END, READABLE, SURROGATES, CharSet, partition

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
        """Returns the derivative of `node` by `char`. Raises OutOfBudgetError."""
        if SURROGATES[0] <= ord(char) < SURROGATES[1]:
            return EMPTY
        return self.follow(node, node.partition.number(char))

    def follow(self, node: Node, number: int) -> Node:
        """Returns what may follow a character of class `number` of those that `node` tells apart."""
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
    """Derives by class `number`. Parts come first, on a stack: expressions are deeper than Python recurs."""
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
    """Returns the derivative by `char`, as it is `known` for the parts that decide it."""
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
    """Yields for each class that some of the expressions tell apart an example, and its class in each of them."""
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


SHORTENING_BUDGET = 2_000
"""For a word that is shorter than one that is known."""
MAX_RECURSION = 120
"""The depth up to which `matches` recurs; below that, it goes by derivatives."""


def matches(node: Node, text: str) -> bool:
    """`text` is a word of `node`. Takes time polynomial in both."""
    if isinstance(node, Words):
        at = bisect_left(node.texts, text)
        return at < len(node.texts) and node.texts[at] == text
    if len(text) < node.minimum or (node.maximum is not None and len(text) > node.maximum):
        return False
    if node.depth > MAX_RECURSION:
        derivatives = Derivatives(1 << 62)
        for char in text:
            node = derivatives.step(node, char)
        return node.nullable
    return bool(_Positions(text).ends(node, 1) >> len(text) & 1)


class _Positions:
    """Matching of one text by sets of positions; a set is an integer with a bit per position."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.all = (2 << len(text)) - 1
        self._places: dict[CharSet, int] = {}
        self._known: dict[tuple[Node, int], int] = {}

    def ends(self, node: Node, starts: int) -> int:
        """Returns where a word of `node` that starts in `starts` can end."""
        if isinstance(node, Chars):
            return (starts & self._places_of(node.chars)) << 1
        found = self._known.get((node, starts))
        if found is None:
            found = self._known[node, starts] = self._ends(node, starts) if starts else 0
        return found

    def _ends(self, node: Node, starts: int) -> int:
        match node:
            case Words(texts=texts):
                return self._words(texts, starts)
            case Concat(items=items):
                for item in items:
                    starts = self.ends(item, starts)
                return starts
            case Union(items=items):
                found = 0
                for item in items:
                    found |= self.ends(item, starts)
                return found
            case Repeat(item=item, low=low, high=high):
                return self._repeated(item, low, high, starts)
            case Intersection() | Complement():
                found = 0
                for start in _bits(starts):
                    one = self._known.get((node, 1 << start))
                    if one is None:
                        one = self._known[node, 1 << start] = self._from(node, start)
                    found |= one
                return found
        raise TypeError(f"no such expression: {node!r}")

    def _from(self, node: Complement | Intersection, start: int) -> int:
        if isinstance(node, Complement):
            return self.all >> start << start & ~self.ends(node.item, 1 << start)
        found = self.all
        for item in node.items:
            found &= self.ends(item, 1 << start)
        return found

    def _repeated(self, item: Node, low: int, high: int | None, starts: int) -> int:
        for _ in range(low):
            starts = self.ends(item, starts)
            if not starts:
                return 0
        found, new, times = starts, starts, low
        while new and (high is None or times < high):
            new = self.ends(item, new) & ~found
            found |= new
            times += 1
        return found

    def _words(self, texts: tuple[str, ...], starts: int) -> int:
        found = 0
        if len(texts) == 1:
            for start in _bits(starts):
                if self.text.startswith(texts[0], start):
                    found |= 1 << start + len(texts[0])
            return found
        lengths = {len(text) for text in texts}
        known = frozenset(texts)
        for start in _bits(starts):
            for length in lengths:
                if start + length <= len(self.text) and self.text[start : start + length] in known:
                    found |= 1 << start + length
        return found

    def _places_of(self, members: CharSet) -> int:
        places = self._places.get(members)
        if places is None:
            bits = "".join("1" if char in members else "0" for char in reversed(self.text))
            places = self._places[members] = int(bits or "0", 2)
        return places


def _bits(positions: int) -> Iterator[int]:
    while positions:
        low = positions & -positions
        yield low.bit_length() - 1
        positions ^= low


def shortest(node: Node, budget: int) -> str | None:
    """A shortest word, of characters that read well; None if there is none. Raises OutOfBudgetError.

    Where expressions have to agree, a word that is found soon is made do with if none shorter is found as soon.
    """
    if isinstance(node, Intersection | Complement) and not node.nullable:
        found = _some_word(node, budget)
        if found is None or len(found) <= node.minimum:
            return found
        try:
            return common_word(node, Derivatives(min(budget, SHORTENING_BUDGET)), matches, shortest=True)
        except OutOfBudgetError:
            return found
    return _Shortest(Derivatives(budget)).of(node)


class _Shortest:
    """Shortest words: those of parts make up those of a whole, but where expressions have to agree."""

    def __init__(self, derivatives: Derivatives) -> None:
        self._derivatives = derivatives
        self._known: dict[Node, str | None] = {}

    def of(self, node: Node) -> str | None:
        known, pending = self._known, [node]
        while pending:  # parts first, on a stack: expressions are deeper than Python recurs
            top = pending[-1]
            if top in known:
                pending.pop()
                continue
            needed = [item for item in _made_of(top) if item not in known]
            if needed:
                pending += needed
                continue
            known[top] = self._compose(top)
            pending.pop()
        return known[node]

    def _compose(self, node: Node) -> str | None:
        if node.nullable:
            return ""
        match node:
            case Words(texts=texts):
                return min(texts, key=_by_length, default=None)
            case Chars(chars=members):
                return members.readable()
            case Concat(items=items):
                found = [text for item in items if (text := self._known[item]) is not None]
                return "".join(found) if len(found) == len(items) else None
            case Union(items=items):
                known = [text for item in items if (text := self._known[item]) is not None]
                return min(known, key=_by_reading, default=None)
            case Repeat(item=item, low=low):
                text = self._known[item]
                return None if text is None else text * low
            case Intersection() | Complement():
                return common_word(node, self._derivatives, matches, shortest=True)
        raise TypeError(f"no such expression: {node!r}")


def _made_of(node: Node) -> tuple[Node, ...]:
    """The parts whose shortest words make up that of `node`."""
    if node.nullable or isinstance(node, Intersection | Complement):
        return ()
    return parts(node)


def _by_length(text: str) -> tuple[int, str]:
    return len(text), text


def _by_reading(text: str) -> tuple[int, list[int]]:
    return len(text), [READABLE.find(char) % END for char in text]


def is_empty(node: Node, budget: int) -> bool:
    """`node` has no word. Raises OutOfBudgetError."""
    if isinstance(node, Intersection | Complement) and not node.nullable:
        return _some_word(node, budget) is None
    return not _has_word(node, Derivatives(budget))


def sample(node: Node, budget: int) -> str | None:
    """Some word of `node`, if looking for it is what deciding whether there is one takes."""
    if node.nullable:
        return ""
    return _known_word(node, budget)[1] if isinstance(node, Intersection | Complement) else None


def _some_word(node: Node, budget: int) -> str | None:
    """A word of `node`, None if it has none. Raises OutOfBudgetError."""
    decided, found = _known_word(node, budget)
    if not decided:
        raise OutOfBudgetError
    return found


@lru_cache(maxsize=1024)
def _known_word(node: Node, budget: int) -> tuple[bool, str | None]:
    """Tells whether it was decided, and the word: both whether there is one and which is the shortest are asked for."""
    try:
        return True, common_word(node, Derivatives(budget), matches, shortest=False)
    except OutOfBudgetError:
        return False, None


def _has_word(node: Node, derivatives: Derivatives) -> bool:
    if node.plain or node.nullable:
        return node is not EMPTY
    if node.depth <= MAX_RECURSION:
        match node:
            case Union(items=items):
                return any(_has_word(item, derivatives) for item in sorted(items, key=_is_composite))
            case Concat(items=items):
                return all(_has_word(item, derivatives) for item in items)
            case Repeat(item=item):
                return _has_word(item, derivatives)
    return common_word(node, derivatives, matches, shortest=False) is not None


def _is_composite(node: Node) -> bool:
    return not node.plain


def enumerate_words(node: Node, limit: int, budget: int) -> list[str] | None:
    """All words, sorted, if there are at most `limit`, else None. Raises OutOfBudgetError."""
    if isinstance(node, Words):
        return list(node.texts) if len(node.texts) <= limit else None
    if isinstance(node, Intersection):
        listed = [item for item in node.items if isinstance(item, Words)]
        if listed:
            found = [text for text in listed[0].texts if matches(node, text)]
            return found if len(found) <= limit else None
    if node.plain and node.maximum is None:
        return None
    derivatives = Derivatives(budget)
    found = []
    level: list[tuple[str, Node]] = [("", node)]
    alive: dict[Node, bool] = {}
    while level:
        following: list[tuple[str, Node]] = []
        for prefix, state in level:
            if state.nullable:
                found.append(prefix)
            for number, members in enumerate(state.partition.sets):
                after = derivatives.follow(state, number)
                if after not in alive:
                    alive[after] = not is_empty(after, derivatives.remaining)
                    derivatives.spend(1)
                if not alive[after]:
                    continue
                derivatives.spend(1)
                if len(found) + len(following) + len(members) > limit:
                    return None  # each prefix that lives leads to a word of its own
                following += ((prefix + char, after) for char in members)
        level = following
    return sorted(found)
