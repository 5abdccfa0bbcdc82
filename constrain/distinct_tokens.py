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

_ANY = re.compile(rb'["\[\]{},]|[0-9]|^(?:t|f|n)|[ :](?:t|f|n)')
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
        """Those that a mask row allows."""
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
        known = [(token, text) for token, text in enumerate(texts) if text and token not in ends]
        self._known = [(token, text) for token, text in known if _ANY.search(text)]
        self._sorted = sorted(text for _, text in self._known)
        self._ids = [token for token, _ in sorted(self._known, key=lambda pair: pair[1])]
        self._starting: dict[bytes, TokenSet] = {}
        self.longest = max((len(text) for _, text in known), default=0)
        self.whole = self._matching(_WHOLE_OUTSIDE), self._matching(_WHOLE_INSIDE)
        self.literals = self._matching(_LITERAL_OUTSIDE), self._matching(_LITERAL_INSIDE)
        self.closes = self._matching(_CLOSES_OUTSIDE), self._matching(_CLOSES_INSIDE)
        self.commas = self._matching(_COMMA_OUTSIDE), self._matching(_COMMA_INSIDE)
        self.escapes = self._matching(_ESCAPED_END)
        self.quotes = self._matching(_QUOTE)

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

    def _matching(self, pattern: re.Pattern[bytes]) -> TokenSet:
        return TokenSet([token for token, text in self._known if pattern.search(text)])
