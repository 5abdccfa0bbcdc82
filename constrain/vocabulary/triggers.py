"""Finds texts in what is generated, token by token, and the tokens that hold such a text and more."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

FIRST_CONTROL = 256
"""Symbols are bytes, and for each control token 256 + its id."""

_BETWEEN = b"\xff"
"""No byte of UTF-8: it separates tokens, and no text that is looked for holds it."""

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
    """Looks for several patterns at once (Aho-Corasick). States are numbers, 0 is the start; immutable."""

    def __init__(self, patterns: Iterable[Symbols]) -> None:
        self.patterns = tuple(tuple(pattern) for pattern in patterns)
        if not all(self.patterns):
            raise ValueError("a pattern must not be empty")
        self._steps: list[dict[int, int]] = [{}]
        self._matched: list[tuple[int, ...]] = [()]
        self._path: list[tuple[int, ...]] = [()]
        for index, pattern in enumerate(self.patterns):
            self._add(index, pattern)
        self._link()

    @property
    def num_states(self) -> int:
        return len(self._steps)

    def step(self, state: int, symbol: int) -> int:
        """The state after one more symbol."""
        return self._steps[state].get(symbol, 0)

    def walk(self, state: int, symbols: Symbols) -> tuple[int, int]:
        """The state after `symbols`, or after the first of them that completes a pattern; and how many were read."""
        steps, matched = self._steps, self._matched
        for count, symbol in enumerate(symbols, 1):
            state = steps[state].get(symbol, 0)
            if matched[state]:
                return state, count
        return state, len(symbols)

    def matched(self, state: int) -> tuple[int, ...]:
        """Returns the patterns that end here."""
        return self._matched[state]

    def rests(self, state: int) -> set[tuple[int, ...]]:
        """Returns what completes a pattern that is begun at `state`; patterns that are not begun are left out."""
        path = self._path[state]
        return {
            pattern[length:]
            for pattern in self.patterns
            for length in range(1, min(len(path) + 1, len(pattern)))
            if path[-length:] == pattern[:length]
        }

    def rest(self, state: int, index: int) -> tuple[int, ...]:
        """The shortest text that completes pattern `index`."""
        path, pattern = self._path[state], self.patterns[index]
        lengths = range(min(len(path), len(pattern) - 1), 0, -1)
        done = next((length for length in lengths if path[-length:] == pattern[:length]), 0)
        return pattern[done:]

    def _add(self, index: int, pattern: tuple[int, ...]) -> None:
        state = 0
        for length, symbol in enumerate(pattern, 1):
            if symbol not in self._steps[state]:
                self._steps[state][symbol] = len(self._steps)
                self._steps.append({})
                self._matched.append(())
                self._path.append(pattern[:length])
            state = self._steps[state][symbol]
        self._matched[state] += (index,)

    def _link(self) -> None:
        """Adds, breadth first, to each state the steps and matches of the longest shorter text that it ends in."""
        shorter = [0] * len(self._steps)
        waiting = deque([0])
        while waiting:
            state = waiting.popleft()
            fallback = shorter[state]
            own = dict(self._steps[state])
            for symbol, child in own.items():
                shorter[child] = self._steps[fallback].get(symbol, 0) if state else 0
                self._matched[child] += self._matched[shorter[child]]
                waiting.append(child)
            if state:
                self._steps[state] = {**self._steps[fallback], **own}


class TokenIndex:
    """The tokens of a vocabulary by what they begin with and by what they hold. Immutable.

    All of them in one text, so that a search is one native call: short enough not to be felt by other threads.
    """

    def __init__(self, texts: Sequence[bytes | None]) -> None:
        self._ids = [token for token, text in enumerate(texts) if text]
        self._texts = [text for text in texts if text]
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
        rests = [bytes(rest) for rest in triggers.rests(state) if max(rest) < FIRST_CONTROL]
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
