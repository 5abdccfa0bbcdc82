"""Tokens that write a given text and more: which of them a matcher allows, where the given text ends."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..errors import MatcherError
from ..vocabulary.token_table import TokenTable
from .interface import Matcher

Ids = npt.NDArray[np.int64]
Pairs = Sequence[tuple[bytes, int]]

_LAST = b"\xff" * 64
"""Sorts behind what goes on after a common beginning; no token holds so many bytes that are no UTF-8."""


class Crossing:
    """Tokens and what each writes beyond the text: `pairs` of both, none of them empty, in order. Immutable."""

    def __init__(self, pairs: Pairs, tokens: TokenTable) -> None:
        self.pairs = pairs
        self._tokens = tokens

    @cached_property
    def ids(self) -> Ids:
        """The tokens."""
        return _ids(token for _, token in self.pairs)

    @property
    def whole(self) -> tuple[Ids, Ids]:
        """The tokens that write beyond the text what is another token's text; and for each of them that token."""
        return self._parts[0]

    @property
    def groups(self) -> dict[int, Crossing]:
        """The others, by the longest token that what they write begins with: what each writes after that."""
        return self._parts[1]

    def after(self, text: bytes) -> Crossing:
        """The tokens that write `text` and more, with what that is."""
        start, stop = bisect_left(self.pairs, (text, 1 << 62)), bisect_left(self.pairs, (text + _LAST, 0))
        return Crossing([(beyond[len(text) :], token) for beyond, token in self.pairs[start:stop]], self._tokens)

    def within(self, text: bytes) -> list[int]:
        """The tokens that write no more than the beginning of `text`."""
        found = []
        for length in range(1, len(text) + 1):
            place = bisect_left(self.pairs, (text[:length], 0))
            while place < len(self.pairs) and self.pairs[place][0] == text[:length]:
                found.append(self.pairs[place][1])
                place += 1
        return found

    @cached_property
    def _parts(self) -> tuple[tuple[Ids, Ids], dict[int, Crossing]]:
        crossing: list[int] = []
        whole: list[int] = []
        groups: dict[int, list[tuple[bytes, int]]] = {}
        for beyond, token in self.pairs:
            piece = self._tokens.prefix(beyond)
            if piece is None:  # nothing writes it by itself, so that no matcher could be fed it
                continue
            length = len(self._tokens.text([piece]))
            if length == len(beyond):
                crossing.append(token)
                whole.append(piece)
            else:
                groups.setdefault(piece, []).append((beyond[length:], token))
        return (_ids(crossing), _ids(whole)), {piece: Crossing(rest, self._tokens) for piece, rest in groups.items()}


class Ahead:
    """Looks at what a matcher allows next. The matcher is moved to and fro, and ends where it began."""

    def __init__(self, tokens: TokenTable, matcher: Matcher) -> None:
        self._tokens = tokens
        self._matcher = matcher

    def allowed(self, crossing: Crossing) -> Ids:
        """The tokens of which it allows what they write beyond the text.

        What is a token's text is allowed if that token is. The others are looked at in groups, after the token that
        they begin with. Where text is forced, a mask may hold only the one token that the model itself would write, and
        says nothing of the others: then texts are compared.
        """
        forced = self._matcher.forced_tokens()
        if forced:
            text = self._tokens.text(forced)
            found = _ids(crossing.within(text))
            longer = crossing.after(text)
            return np.concatenate([found, self._allowed_after(forced, longer)]) if longer.pairs else found
        row = np.zeros(self._tokens.num_words, dtype=np.int32)
        try:
            self._matcher.fill_mask(row)
        except MatcherError:
            return _ids(())
        tokens, beyond = crossing.whole
        parts = [tokens[row[beyond // 32] >> (beyond % 32) & 1 == 1]]
        for piece, group in crossing.groups.items():
            if row[piece // 32] >> (piece % 32) & 1:
                parts.append(self._allowed_after([piece], group))
        return np.concatenate(parts)

    def _allowed_after(self, taken: list[int], crossing: Crossing) -> Ids:
        """The same after `taken`."""
        for token in taken:
            self._matcher.accept(token)
        found = self.allowed(crossing)
        self._matcher.rollback(len(taken))
        return found


def _ids(tokens: Iterable[int]) -> Ids:
    return np.fromiter(tokens, dtype=np.int64)
