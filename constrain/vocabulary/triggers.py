"""Finds texts in what is generated, token by token, and the tokens that hold such a text and more."""

from __future__ import annotations

import bisect
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence

FIRST_CONTROL = 256
"""Symbols are bytes, and for each control token 256 + its id."""

_BETWEEN = b"\xff"
"""No byte of UTF-8: it separates tokens, and no text that is looked for holds it."""

_SYMBOL_BITS = 32
"""Bits of a symbol in the key of a step."""

Symbols = Sequence[int]


def to_symbols(text: str, control: Mapping[str, int]) -> tuple[int, ...]:
    """The symbols of a text. What spells a control token is that token; the longest one where several do."""
    symbols: list[int] = []
    names = sorted((name for name in control if name in text), key=len, reverse=True)
    start = 0
    while start < len(text):
        name = next((name for name in names if text.startswith(name, start)), None)
        if name is None:
            symbols += text[start].encode()
            start += 1
        else:
            symbols.append(FIRST_CONTROL + control[name])
            start += len(name)
    return tuple(symbols)


def runs(symbols: Symbols) -> Iterator[bytes | int]:
    """Yields the texts, none of them empty, and the control tokens that `symbols` are made of."""
    text = bytearray()
    for symbol in symbols:
        if symbol < FIRST_CONTROL:
            text.append(symbol)
            continue
        if text:
            yield bytes(text)
            text.clear()
        yield symbol - FIRST_CONTROL
    if text:
        yield bytes(text)


class Triggers:
    """Looks for several patterns at once (Aho-Corasick). States are numbers, 0 is the start; immutable.

    Memory and the time to make it are linear in the patterns' symbols: a state keeps its depth, and the patterns that
    begin with its text as a range of places in the sorted order.
    """

    def __init__(self, patterns: Iterable[Symbols]) -> None:
        self.patterns = tuple(tuple(pattern) for pattern in patterns)
        if not all(self.patterns):
            raise ValueError("a pattern must not be empty")
        self._order = sorted(range(len(self.patterns)), key=self.patterns.__getitem__)
        self._steps: dict[int, int] = {}
        self._depth = array("i", [0])
        self._first, self._last = array("i", [0]), array("i", [len(self._order) - 1])
        self._ends: dict[int, tuple[int, ...]] = {}
        parents = [0]
        for place, index in enumerate(self._order):
            self._add(place, index, parents)
        self._fallback = array("i", bytes(4 * len(self._depth)))  # the longest shorter text that a state ends in
        self._ending = array("i", bytes(4 * len(self._depth)))  # the longest pattern that a state ends in, as a state
        self._link(parents)

    @property
    def num_states(self) -> int:
        return len(self._depth)

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes, about."""
        num_symbols = sum(map(len, self.patterns))
        numbers = 64 * len(self._steps) + 20 * self.num_states  # keys and values of the steps; five arrays
        return 8 * num_symbols + 300 * len(self.patterns) + sys.getsizeof(self._steps) + numbers

    def step(self, state: int, symbol: int) -> int:
        """The state after one more symbol."""
        child = self._steps.get(state << _SYMBOL_BITS | symbol)
        while child is None and state:
            state = self._fallback[state]
            child = self._steps.get(state << _SYMBOL_BITS | symbol)
        return child or 0

    def walk(self, state: int, symbols: Symbols) -> tuple[int, int]:
        """The state after `symbols`, or after the first of them that completes a pattern; and how many were read."""
        ending = self._ending
        for count, symbol in enumerate(symbols, 1):
            state = self.step(state, symbol)
            if ending[state]:
                return state, count
        return state, len(symbols)

    def matched(self, state: int) -> tuple[int, ...]:
        """Returns the patterns that end here."""
        found: list[int] = []
        end = self._ending[state]
        while end:
            found += self._ends[end]
            end = self._ending[self._fallback[end]]
        return tuple(found)

    def prefixes(self, symbols: Symbols) -> list[int]:
        """Returns the patterns that `symbols` begin with, the shortest first."""
        found: list[int] = []
        state = 0
        for symbol in symbols:
            child = self._steps.get(state << _SYMBOL_BITS | symbol)
            if child is None:
                break
            state = child
            found += self._ends.get(state, ())
        return found

    def rests(self, state: int, below: int | None = None) -> set[tuple[int, ...]]:
        """Returns what completes a pattern that is begun at `state`, where that is shorter than `below` symbols.

        Patterns that are not begun are left out.
        """
        return {
            self.patterns[index][depth:]
            for depth, indexes in self._begun(state)
            for index in indexes
            if depth < len(self.patterns[index]) and (below is None or len(self.patterns[index]) < depth + below)
        }

    def rest(self, state: int, index: int) -> tuple[int, ...]:
        """The shortest text that completes pattern `index`."""
        pattern = self.patterns[index]
        done = (depth for depth, indexes in self._begun(state) if depth < len(pattern) and index in indexes)
        return pattern[next(done, 0) :]

    def _begun(self, state: int) -> Iterator[tuple[int, list[int]]]:
        """Yields the lengths of the beginnings that `state` ends in, the longest first, and the patterns of each."""
        while state:
            yield self._depth[state], self._order[self._first[state] : self._last[state] + 1]
            state = self._fallback[state]

    def _add(self, place: int, index: int, parents: list[int]) -> None:
        state = 0
        for depth, symbol in enumerate(self.patterns[index], 1):
            key = state << _SYMBOL_BITS | symbol
            child = self._steps.get(key)
            if child is None:
                child = self._steps[key] = len(self._depth)
                self._depth.append(depth)
                parents.append(state)
                self._first.append(place)
                self._last.append(place)
            self._last[child] = place
            state = child
        self._ends[state] = (*self._ends.get(state, ()), index)

    def _link(self, parents: Sequence[int]) -> None:
        """Finds, the shorter ones first, where each state falls back to."""
        for state in sorted(range(1, self.num_states), key=self._depth.__getitem__):
            parent = parents[state]
            if parent:
                symbol = self.patterns[self._order[self._first[state]]][self._depth[state] - 1]
                self._fallback[state] = self.step(self._fallback[parent], symbol)
            self._ending[state] = state if state in self._ends else self._ending[self._fallback[state]]


class TokenIndex:
    """The tokens of a vocabulary by what they begin with and by what they hold. Immutable.

    All of them in one text, so that a search is one native call: short enough not to be felt by other threads.
    """

    def __init__(self, texts: Sequence[bytes | None]) -> None:
        self._ids = [token for token, text in enumerate(texts) if text]
        self._texts = [text for text in texts if text]
        self._longest = max(map(len, self._texts), default=0)
        self._joined = _BETWEEN + _BETWEEN.join(self._texts)
        self._starts: list[int] = []
        start = 1
        for text in self._texts:
            self._starts.append(start)
            start += len(text) + 1

    def longer_than(self, prefix: bytes) -> list[int]:
        """Tokens that begin with `prefix`, which must be UTF-8, and do not end with it."""
        places = [self._place(start + 1) for start in self._find(_BETWEEN + prefix)]
        found = [place for place in places if self._texts[place].startswith(prefix) and self._texts[place] != prefix]
        return [self._ids[place] for place in found]

    def holding(self, part: bytes) -> list[int]:
        """Tokens that hold `part`, which must be UTF-8, before their last byte."""
        places = {self._place(start): None for start in self._find(part)}
        return [self._ids[place] for place in places if part in self._texts[place][:-1]]

    def crossing(self, triggers: Triggers, state: int) -> list[int]:
        """Tokens that complete at `state` a pattern that is begun there, and hold more after it."""
        rests = [bytes(rest) for rest in triggers.rests(state, self._longest) if max(rest) < FIRST_CONTROL]
        return list(dict.fromkeys(token for rest in rests for token in self.longer_than(rest)))

    def holding_any(self, triggers: Triggers) -> list[int]:
        """Tokens that hold a whole pattern before their last byte."""
        texts = [bytes(pattern) for pattern in triggers.patterns if max(pattern) < FIRST_CONTROL]
        return list(dict.fromkeys(token for text in texts for token in self.holding(text)))

    def _find(self, text: bytes) -> Iterator[int]:
        start = self._joined.find(text)
        while start >= 0:
            yield start
            start = self._joined.find(text, start + 1)

    def _place(self, start: int) -> int:
        return bisect.bisect_right(self._starts, start) - 1
