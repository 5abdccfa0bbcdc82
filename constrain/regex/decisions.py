"""What can be decided about regular expressions: membership, emptiness, a shortest word, all words."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache

from .algebra import EMPTY
from .charsets import END, READABLE, CharSet
from .derivatives import Derivatives, OutOfBudgetError
from .nodes import Chars, Complement, Concat, Intersection, Node, Repeat, Union, Words, parts
from .products import common_word

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
        """Where a word of `node` that starts in `starts` can end."""
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
    """Whether it was decided, and the word: both whether there is one and which is the shortest are asked for."""
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
