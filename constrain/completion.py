"""Finds a short way to complete the word that a matcher is in: the witness that it can still end in time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from .tokens import TokenTable

BEAM_WIDTH = 12
MAX_CHILDREN = 24
MAX_EXPANSIONS = 1_200


Mask = npt.NDArray[np.uint32]


class _Preference:
    """Tokens in order of preference, looked up in a mask all at once."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self._tokens = np.array(list(dict.fromkeys(tokens)), dtype=np.int64)
        self._words = self._tokens >> 5
        self._bits = np.left_shift(np.uint32(1), (self._tokens & 31).astype(np.uint32))

    def allowed(self, mask: Mask) -> npt.NDArray[np.int64]:
        """Those that `mask` allows, in order."""
        return self._tokens[(mask[self._words] & self._bits) != 0]


class Completer:
    """Searches for completions, first greedily, then with a beam. Holds no state of a generation.

    `hints` are texts that short words are likely to hold: names of required properties.
    """

    def __init__(self, tokens: TokenTable, hints: Iterable[str] = ()) -> None:
        self._tokens = tokens
        names = tokens.prefixes(hints)
        content = [*tokens.fillers, *tokens.single_bytes]
        between = tokens.between
        quote = between.index(tokens.in_string[-1]) + 1 if tokens.in_string else 0
        self._in_string = _Preference([*tokens.in_string, *names, *content])
        self._between = _Preference([*between[:quote], *names, *between[quote:], *content])
        self._brackets = _Preference(tokens.brackets)
        self._num_words = tokens.num_words

    def search(self, matcher: LLMatcher, max_tokens: int) -> list[int] | None:
        """Tokens, at most `max_tokens`, that complete the word; None if none were found. Leaves `matcher` as it is."""
        found = self._greedy(matcher, max_tokens)
        return found if found is not None else self._beam(matcher, max_tokens)

    def completes(self, matcher: LLMatcher, tokens: list[int]) -> bool:
        """Whether `tokens` complete the word."""
        trial = matcher.deep_copy()
        return trial.try_consume_tokens(tokens) == len(tokens) and trial.is_accepting()

    def _greedy(self, matcher: LLMatcher, max_tokens: int) -> list[int] | None:
        trial = matcher.deep_copy()
        path: list[int] = []
        while not trial.is_accepting():
            step = trial.compute_ff_tokens() or self._next(trial, 1)
            if not step or len(path) + len(step) > max_tokens or not trial.consume_tokens(step):
                return None
            path += step
        return path

    def _next(self, trial: LLMatcher, count: int) -> list[int]:
        """Up to `count` tokens worth trying next, best first."""
        forced = trial.compute_ff_bytes()
        if forced:  # so few that the model's tokens for them depend on what follows
            token = self._tokens.prefix(forced)
            return [] if token is None else [token]
        mask = np.zeros(self._num_words, dtype=np.uint32)
        trial.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        # Both brackets are allowed within strings only: elsewhere it is known which one is open.
        preference = self._in_string if self._brackets.allowed(mask).size == 2 else self._between
        allowed = preference.allowed(mask)
        if not allowed.size:
            return self._any(mask)
        if allowed.size <= count:
            return [int(token) for token in allowed]
        head = max(1, count // 3)  # the best, and an even sample of the rest
        rest = allowed[head:]
        sample = rest[:: max(1, rest.size // max(1, count - head))][: count - head]
        return [int(token) for token in (*allowed[:head], *sample)]

    def _any(self, mask: Mask) -> list[int]:
        """The lowest allowed token that is not the end of sequence."""
        bits = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        return [int(token) for token in bits if int(token) not in self._tokens.eos_ids][:1]

    def _beam(self, matcher: LLMatcher, max_tokens: int) -> list[int] | None:
        beam: list[tuple[LLMatcher, list[int]]] = [(matcher.deep_copy(), [])]
        num_expansions = 0
        while beam and num_expansions < MAX_EXPANSIONS:
            following: list[tuple[LLMatcher, list[int]]] = []
            for state, path in beam:
                forced = state.compute_ff_tokens()
                for step in [forced] if forced else [[token] for token in self._next(state, MAX_CHILDREN)]:
                    num_expansions += 1
                    child = state.deep_copy()
                    if len(path) + len(step) > max_tokens or child.try_consume_tokens(step) != len(step):
                        continue
                    if child.is_accepting():
                        return path + step
                    following.append((child, path + step))
            following.sort(key=lambda entry: len(entry[1]))
            stride = max(1, len(following) // BEAM_WIDTH)
            beam = [*following[: BEAM_WIDTH // 2], *following[BEAM_WIDTH // 2 :: stride]][:BEAM_WIDTH]
        return None
