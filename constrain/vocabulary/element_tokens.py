"""The tokens of a vocabulary that can complete an element of a JSON text, by how they do it."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.uint32]
"""A mask row, uint32 [W]."""

MAX_KEPT = 10_000

_WHOLE_OUTSIDE = re.compile(rb'".*"|[0-9el][,\]}]|[\[{].*[\]}]', re.DOTALL)
_WHOLE_INSIDE = re.compile(rb'".*".*"|".*[0-9el][,\]}]|".*[\[{].*[\]}]', re.DOTALL)
_LITERAL = rb"(?:t(?:r|$)|f(?:a|$)|n(?:u|$))"
_LITERAL_OUTSIDE = re.compile(rb"(?:^|[\[,: ])" + _LITERAL, re.DOTALL)
_LITERAL_INSIDE = re.compile(rb'".*[\[,: ]' + _LITERAL, re.DOTALL)
_CLOSES_OUTSIDE = re.compile(rb"[\]}]")
_CLOSES_INSIDE = re.compile(rb'".*[\]}]', re.DOTALL)
_COMMA_OUTSIDE = re.compile(rb",")
_COMMA_INSIDE = re.compile(rb'".*,', re.DOTALL)
_ESCAPED_END = re.compile(rb'^[^"\\]*(?:\\.[^"\\]*)+"', re.DOTALL)
_QUOTE = re.compile(rb'."', re.DOTALL)


class TokenSet:
    """Some tokens, looked up in a mask all at once."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = np.array(tokens, dtype=np.int64)
        self._words = self._tokens >> 5
        self._bits = np.left_shift(np.uint32(1), (self._tokens & 31).astype(np.uint32))

    def allowed(self, row: Row) -> list[int]:
        """Returns the tokens that a mask row allows."""
        if not len(self._tokens):
            return []
        found: list[int] = self._tokens[(row[self._words] & self._bits) != 0].tolist()
        return found

    def forbid(self, row: Row) -> None:
        """Takes them out of a mask row."""
        if len(self._tokens):
            np.bitwise_and.at(row, self._words, ~self._bits)


class DistinctTokens:
    """Tokens by what they may do to a JSON text: each list holds at least those that do it.

    `outside` is for texts that are not in a string, `inside` for those that are.

    whole      hold an element, or a key, from its first byte to its last
    literals   begin `true`, `false` or `null` such that it can be nothing else
    closes     hold a closing bracket
    commas     hold a comma
    escapes    inside: end the string after an escape; quotes: hold a quotation mark that is not their first byte
    """

    def __init__(self, texts: Sequence[bytes | None], end_ids: Iterable[int]) -> None:
        ends = frozenset(end_ids)
        known = [b"" if text is None or token in ends else text for token, text in enumerate(texts)]
        some = [(known[token], token) for token in _of_interest(known)]
        quotes = [(text, token) for text, token in some if b'"' in text]
        ordered = sorted(some)
        self._sorted = [text for text, _ in ordered]
        self._ids = [token for _, token in ordered]
        self._starting: dict[bytes, TokenSet] = {}
        self.longest = max(map(len, known), default=0)
        self.whole = _matching(_WHOLE_OUTSIDE, some), _matching(_WHOLE_INSIDE, quotes)
        self.literals = _matching(_LITERAL_OUTSIDE, some), _matching(_LITERAL_INSIDE, quotes)
        self.closes = _matching(_CLOSES_OUTSIDE, some), _matching(_CLOSES_INSIDE, quotes)
        self.commas = _matching(_COMMA_OUTSIDE, some), _matching(_COMMA_INSIDE, quotes)
        self.escapes = _matching(_ESCAPED_END, quotes)
        self.quotes = _matching(_QUOTE, quotes)

    def starting(self, text: bytes) -> TokenSet:
        """The tokens that begin with `text`."""
        found = self._starting.get(text)
        if found is None:
            if len(self._starting) >= MAX_KEPT:
                self._starting.clear()
            start = bisect.bisect_left(self._sorted, text)
            stop = bisect.bisect_left(self._sorted, text + b"\xff" * 4, lo=start)
            found = self._starting[text] = TokenSet(self._ids[start:stop])
        return found


def _of_interest(texts: Sequence[bytes]) -> list[int]:
    """Finds tokens that hold a sign or a digit, or that begin a literal: at their beginning, or after a space or colon.

    They are few, and looked for in all tokens at once: one after another they would take ten times as long.
    """
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    filled = np.flatnonzero(lengths)
    if not len(filled):
        return []
    data = np.frombuffer(b"".join(texts), dtype=np.uint8)
    starts = (np.cumsum(lengths) - lengths)[filled]
    may_begin = np.concatenate(([True], _one_of(b" :")[data[:-1]]))
    may_begin[starts] = True
    marked = _one_of(b'"[]{},0123456789')[data] | (may_begin & _one_of(b"tfn")[data])
    found: list[int] = filled[np.logical_or.reduceat(marked, starts)].tolist()
    return found


def _one_of(signs: bytes) -> npt.NDArray[np.bool_]:
    """Marks the bytes that are one of `signs`."""
    found = np.zeros(256, dtype=np.bool_)
    found[list(signs)] = True
    return found


def _matching(pattern: re.Pattern[bytes], known: Sequence[tuple[bytes, int]]) -> TokenSet:
    search = pattern.search
    return TokenSet([token for text, token in known if search(text)])
