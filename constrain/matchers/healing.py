"""Token healing: constrains a generation to begin with given bytes, in any tokens, before its grammar begins."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import MatcherError
from ..vocabulary.token_table import TokenTable
from ..vocabulary.vocabulary import MaskRow
from .interface import Matcher

Ids = npt.NDArray[np.int64]
Pairs = Sequence[tuple[bytes, int]]

_LAST = b"\xff" * 64
"""Sorts after all continuations of a common prefix: no token holds that many bytes that are not UTF-8."""


class Crossing:
    """Tokens that extend beyond a text, in `pairs` with the bytes that each writes beyond it, sorted. Immutable."""

    def __init__(self, pairs: Pairs, tokens: TokenTable) -> None:
        self.pairs = pairs
        self._tokens = tokens

    @cached_property
    def ids(self) -> Ids:
        """Ids of the tokens."""
        return _ids(token for _, token in self.pairs)

    @property
    def whole(self) -> tuple[Ids, Ids]:
        """Tokens whose bytes beyond the text are the whole text of another token; and for each, that token."""
        return self._parts[0]

    @property
    def groups(self) -> dict[int, Crossing]:
        """The other tokens with what each writes after it, by the longest token that begins their bytes."""
        return self._parts[1]

    def after(self, text: bytes) -> Crossing:
        """Returns the tokens that write `text` and more, with the bytes after it."""
        start, stop = bisect_left(self.pairs, (text, 1 << 62)), bisect_left(self.pairs, (text + _LAST, 0))
        return Crossing([(beyond[len(text) :], token) for beyond, token in self.pairs[start:stop]], self._tokens)

    def within(self, text: bytes) -> list[int]:
        """Returns the tokens that write only a prefix of `text`."""
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
            if piece is None:  # no token writes it alone, so that no matcher could be fed it
                continue
            length = len(self._tokens.text([piece]))
            if length == len(beyond):
                crossing.append(token)
                whole.append(piece)
            else:
                groups.setdefault(piece, []).append((beyond[length:], token))
        return (_ids(crossing), _ids(whole)), {piece: Crossing(rest, self._tokens) for piece, rest in groups.items()}


class Ahead:
    """Finds what a matcher allows beyond the prefix. Moves the matcher back and forth, and restores its state."""

    def __init__(self, tokens: TokenTable, matcher: Matcher) -> None:
        self._tokens = tokens
        self._matcher = matcher

    def allowed(self, crossing: Crossing) -> Ids:
        """Returns the tokens whose bytes beyond the text are allowed.

        Bytes that are a token's whole text are allowed if that token is. The others are tested in groups, after the
        token that they begin with. Where text is forced, a mask may hold only the one token that the model itself would
        write and exclude equivalent ones: then bytes are compared.
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
        """Returns the tokens that are allowed after `taken`."""
        for token in taken:
            self._matcher.accept(token)
        found = self.allowed(crossing)
        self._matcher.rollback(len(taken))
        return found


def _ids(tokens: Iterable[int]) -> Ids:
    return np.fromiter(tokens, dtype=np.int64)


MAX_CROSSINGS = 16


class _Mark(NamedTuple):
    """Record of an accepted token: the number of prefix bytes that it wrote, and of tokens fed to `inner` for it."""

    token: int
    num_bytes: int
    num_fed: int


class Healer:
    """Makes `Healing` matchers for one vocabulary. Thread-safe."""

    def __init__(self, tokens: TokenTable) -> None:
        self.tokens = tokens
        self.crossing = lru_cache(MAX_CROSSINGS)(self._crossing)

    def matcher(self, prefix: bytes, inner: Matcher | None = None) -> Healing:
        """Returns a matcher of texts that begin with `prefix`, followed by a word of `inner` (None: by any text)."""
        return Healing(prefix, self, inner)

    def after(self, prefix: bytes, inner: Matcher | None) -> Matcher | None:
        """Returns a matcher of `prefix`, if there is one, followed by `inner`."""
        return self.matcher(prefix, inner) if prefix else inner

    def _crossing(self, text: bytes) -> Crossing:
        texts = self.tokens.vocabulary.tokens
        longer = self.tokens.index.longer_than(text)
        return Crossing(sorted(((texts[token] or b"")[len(text) :], token) for token in longer), self.tokens)


class Healing(Matcher):
    """Matcher of a text that begins with `prefix`, followed by a word of `inner` (None: any text).

    It allows all tokens that agree with the rest of the prefix: those that write a part of it, and those that write all
    of it and more, if `inner` allows the remainder. After the prefix it behaves as `inner`, which is then its
    `successor`.
    """

    def __init__(self, prefix: bytes, healer: Healer, inner: Matcher | None) -> None:
        if not prefix:
            raise ValueError("without a prefix there is nothing to heal")
        self.inner = inner
        self._healer = healer
        self._tokens = healer.tokens
        self._rest = prefix
        self._prefix = prefix
        self._taken: list[_Mark] = []

    @property
    def over(self) -> bool:
        """True once the prefix is written: what follows is matched by `inner`."""
        return not self._rest

    @property
    def free(self) -> bool:
        """True where every token is allowed, so that no mask is needed."""
        return self.over and (self.inner is None or self.inner.free)

    @property
    def closed(self) -> bool:
        """True if the budget cut the word of `inner` short."""
        return self.inner is not None and self.inner.closed

    @property
    def successor(self) -> Matcher | None:
        """The `inner` matcher, once the prefix is written."""
        return self.inner if self.over else self

    @property
    def taken(self) -> list[int]:
        """Tokens accepted so far."""
        return [mark.token for mark in self._taken]

    @property
    def accepting(self) -> bool:
        """True where the end of sequence is allowed."""
        return self.over and (self.inner is None or self.inner.accepting)

    @property
    def finished(self) -> bool:
        """True where nothing but the end of sequence is allowed."""
        return self.over and self.inner is not None and self.inner.finished

    def min_tokens(self) -> int | None:
        """Returns the number of tokens of a short word of `inner`."""
        return 0 if self.inner is None else self.inner.min_tokens()

    def fill_mask(self, out: MaskRow) -> None:
        """Writes the tokens allowed next. Raises MatcherError at a dead end."""
        if self.over:
            if self.inner is not None:
                self.inner.fill_mask(out)
            else:
                out[:] = _row(np.arange(self._tokens.vocabulary.size), len(out))
            return
        if out.shape != (self._tokens.num_words,) or out.dtype != np.int32:
            raise MatcherError(f"a mask row must be {self._tokens.num_words} int32 words, got {out.dtype} {out.shape}")
        rest = self._rest
        within = [token for length in range(1, len(rest) + 1) for token in self._tokens.spelling(rest[:length])]
        crossing = self._healer.crossing(rest)
        beyond = crossing.ids if self.inner is None else Ahead(self._tokens, self.inner.copy()).allowed(crossing)
        if not within and not len(beyond):
            raise MatcherError(f"no token continues with {rest!r}")
        out[:] = _row(np.concatenate([np.array(within, dtype=np.int64), beyond]), len(out))

    def accept(self, token: int, remaining: int | None = None, patience_s: float | None = None) -> int:
        """Advances by `token`, or by one that leaves a way to the end within `remaining`, and returns the one taken."""
        if self.over:
            return self._accept_after(token, remaining, patience_s)
        text = self._text(token)
        if not self._agrees(text):
            raise MatcherError(f"token {token} does not continue with {self._rest!r}")
        num_bytes = min(len(text), len(self._rest))
        num_fed = self._feed(text[num_bytes:], remaining, patience_s)
        if num_fed is None or not self._fits(text, remaining):
            token = self._way(self._rest)[0]
            num_bytes, num_fed = len(self._text(token)), 0
        self._rest = self._rest[num_bytes:]
        self._taken.append(_Mark(token, num_bytes, num_fed))
        return token

    def forced_tokens(self, patience_s: float | None = None) -> list[int]:
        """Returns the tokens that are forced next; before the end of the prefix there is mostly a choice."""
        return self.inner.forced_tokens(patience_s) if self.over and self.inner is not None else []

    def rollback(self, num_tokens: int) -> None:
        """Takes back the last `num_tokens` accepted tokens; ends of sequence do not count."""
        if num_tokens < 0 or num_tokens > len(self._taken):
            raise MatcherError(f"cannot take back {num_tokens} of {len(self._taken)} tokens")
        if num_tokens == 0:
            return
        marks = self._taken[-num_tokens:]
        if self.inner is not None:
            self.inner.rollback(sum(mark.num_fed for mark in marks))
        del self._taken[-num_tokens:]
        num_left = len(self._rest) + sum(mark.num_bytes for mark in marks)
        self._rest = self._prefix[len(self._prefix) - num_left :]

    def copy(self) -> Healing:
        """Returns an independent matcher in the same state."""
        other = Healing(self._prefix, self._healer, None if self.inner is None else self.inner.copy())
        other._rest = self._rest
        other._taken = list(self._taken)
        return other

    def _accept_after(self, token: int, remaining: int | None, patience_s: float | None) -> int:
        if self.inner is not None:
            token = self.inner.accept(token, remaining, patience_s)
        if token not in self._tokens.eos_ids:
            self._taken.append(_Mark(token, 0, int(self.inner is not None)))
        return token

    def _text(self, token: int) -> bytes:
        """Returns the bytes of a token; empty for ends of sequence and other control tokens."""
        return self._tokens.text([token]) if token >= 0 else b""

    def _agrees(self, text: bytes) -> bool:
        return bool(text) and (self._rest.startswith(text) or text.startswith(self._rest))

    def _fits(self, text: bytes, remaining: int | None) -> bool:
        """Returns True if the rest of the prefix and a word of `inner` fit into `remaining` tokens after a token within
        the prefix."""
        if remaining is None or len(text) > len(self._rest):
            return True
        least = self.min_tokens() or 0
        rest = self._rest[len(text) :]
        return remaining >= len(rest) + least or remaining >= len(self._way(rest)) + least

    def _way(self, rest: bytes) -> list[int]:
        """Returns tokens that write `rest`."""
        tokens = self._tokens.encode(rest)
        if self._tokens.text(tokens) == rest:
            return tokens
        tokens = []
        while rest and (piece := self._tokens.prefix(rest)) is not None:
            tokens.append(piece)
            rest = rest[len(self._text(piece)) :]
        return tokens

    def _feed(self, text: bytes, remaining: int | None, patience_s: float | None) -> int | None:
        """Feeds the text that a token wrote beyond the prefix to `inner`; returns the number of tokens.

        Returns None and changes nothing if `inner` knows no way to its end from there within `remaining`.
        """
        if self.inner is None:
            return 0
        num_fed = 0
        try:
            while text:
                piece = self._tokens.prefix(text)
                if piece is None:
                    raise MatcherError(f"no token writes {text!r}")
                text = text[len(self._text(piece)) :]
                taken = self.inner.accept(piece, None if text else remaining, patience_s)
                num_fed += taken not in self._tokens.eos_ids
                if taken != piece:
                    self.inner.rollback(num_fed)
                    return None
        except MatcherError:
            self.inner.rollback(num_fed)
            raise
        return num_fed


def _row(tokens: npt.NDArray[np.int64], num_words: int) -> MaskRow:
    """Returns a mask row that allows only `tokens`."""
    bits = np.zeros(32 * num_words, dtype=np.uint8)
    bits[tokens] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)
