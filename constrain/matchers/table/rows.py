"""Moves of an automaton over bytes by whole tokens, and how far from the end each state is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...errors import GrammarError, GrammarTooComplexError
from ...regex.automaton import MAX_STATES, Automaton
from ...vocabulary.token_table import Level

MAX_MOVES = 1 << 24
"""Pairs of a state and a class of tokens, or of beginnings of tokens, that it allows."""

FAR = np.iinfo(np.int32).max

Int32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TokenMoves:
    """An automaton whose letters are classes of tokens that no state tells apart. State 0 is the start.

    token_class   int32 [V]    0: no state allows the token (also: it ends the text)
    first         int64 [S + 1]
    kinds         int32 [M]    kinds[first[s] : first[s + 1]]: the classes that state s allows, rising
    targets       int32 [M]    the state after each
    ends          bool [S]     the text may end
    distance      int32 [S]    tokens of the shortest way to an end; FAR: there is none in this vocabulary, and no move
                               leads there
    """

    token_class: Int32
    first: npt.NDArray[np.int64]
    kinds: Int32
    targets: Int32
    ends: Bool
    distance: Int32

    @property
    def num_states(self) -> int:
        return len(self.ends)

    @property
    def num_classes(self) -> int:
        """Classes in use, and class 0."""
        return int(self.kinds.max(initial=0)) + 1

    @property
    def num_bytes(self) -> int:
        parts = (self.token_class, self.first, self.kinds, self.targets, self.ends, self.distance)
        return sum(part.nbytes for part in parts)

    def row(self, state: int, eos_ids: Collection[int], num_words: int) -> Int32:
        """The mask of a state, int32 [num_words]."""
        allowed = np.zeros(self.num_classes, np.uint8)
        allowed[self.kinds[self.first[state] : self.first[state + 1]]] = 1
        bits = np.zeros(32 * num_words, np.uint8)
        bits[: len(self.token_class)] = allowed[self.token_class]
        if self.ends[state]:
            bits[list(eos_ids)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    def dense(self, eos_ids: Collection[int]) -> tuple[Int32, Int32]:
        """Classes int32 [V] and next states int32 [S + 1, C + 1], -1 where there is none.

        The tokens that end the text have the last class, which leads to the last state, where nothing is allowed.
        """
        token_class = self.token_class.copy()
        token_class[list(eos_ids)] = self.num_classes
        following = np.full((self.num_states + 1, self.num_classes + 1), -1, np.int32)
        following[np.repeat(np.arange(self.num_states), np.diff(self.first)), self.kinds] = self.targets
        following[:-1][self.ends, -1] = self.num_states
        return token_class, following


def token_moves(automaton: Automaton, trie: Sequence[Level], vocab_size: int) -> TokenMoves:
    """Returns what `automaton` does to the tokens of `trie`, exactly.

    A token is a partial function from states to states. Those of a trie's nodes are composed level by level, each
    distinct one once: there are few, or they are defined for few states.

    Raises:
        GrammarError: no tokens make a text that it matches.
        GrammarTooComplexError: it takes too much memory.
    """
    functions = _Functions(automaton)
    token_function = np.full(vocab_size, -1, np.int64)
    at = np.zeros(1, np.int64)  # the root's function is the first: all states stay
    for level in trie:
        at = functions.compose(at[level.parent], level.byte)
        token_function[level.tokens] = at[level.nodes]
    used, kind = np.unique(token_function, return_inverse=True)
    assert used[0] == -1, "the end of sequence has no text"
    sources, targets, sizes = functions.pairs(used[1:])
    ends = automaton.tables()[2]
    distance = _distances(sources, targets, ends)
    if distance[0] == FAR:
        raise GrammarError("no tokens of the model make a text that the constraint allows")
    kinds = np.repeat(np.arange(1, len(used)), sizes)
    kept = distance[targets] < FAR
    sources, targets, kinds = sources[kept], targets[kept], kinds[kept]
    order = np.argsort(sources, kind="stable")
    return TokenMoves(
        token_class=kind.astype(np.int32),
        first=np.searchsorted(sources[order], np.arange(automaton.num_states + 1)),
        kinds=kinds[order].astype(np.int32),
        targets=targets[order].astype(np.int32),
        ends=ends,
        distance=distance,
    )


class _Functions:
    """Partial functions from states to states, each kept once, as (state * MAX_STATES + its image) in rising order."""

    def __init__(self, automaton: Automaton) -> None:
        self._classes, self._following, _ = automaton.tables()
        self._num_classes = self._following.shape[1]
        identity = (np.arange(automaton.num_states) * (MAX_STATES + 1)).astype(np.int32)
        self._pairs = identity
        self._start = np.array([0, len(identity)])
        self._number = {identity.tobytes(): 0}
        self._composed: dict[int, int] = {}  # function * num_classes + class -> function, -1: defined nowhere

    def compose(self, functions: npt.NDArray[np.int64], last: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        """Each of `functions` [N] (-1: defined nowhere) followed by its byte of `last` [N]."""
        alive = np.flatnonzero(functions >= 0)
        keys = functions[alive] * self._num_classes + self._classes[last[alive]]
        distinct, place = np.unique(keys, return_inverse=True)
        self._add([key for key in distinct.tolist() if key not in self._composed])
        found = np.full(len(functions), -1, np.int64)
        found[alive] = np.array([self._composed[key] for key in distinct.tolist()], np.int64)[place]
        return found

    def pairs(self, functions: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], Int32, npt.NDArray[np.int64]]:
        """Returns where `functions` are defined, one after the other: states, their images, and how many there are of
        each."""
        sizes = np.diff(self._start)[functions]
        if sizes.sum() > MAX_MOVES:
            raise GrammarTooComplexError("the constraint takes too much memory as a table")
        chosen = self._pairs[_ranges(self._start[functions], sizes)]
        return chosen.astype(np.int64) // MAX_STATES, chosen % MAX_STATES, sizes

    def _add(self, keys: list[int]) -> None:
        if not keys:
            return
        function, kind = np.divmod(np.array(keys), self._num_classes)
        sizes = np.diff(self._start)[function]
        if sizes.sum() + len(self._pairs) > MAX_MOVES:
            raise GrammarTooComplexError("the constraint takes too much memory as a table")
        pairs = self._pairs[_ranges(self._start[function], sizes)]
        images = self._following[pairs % MAX_STATES, np.repeat(kind, sizes)]
        kept = images >= 0
        row = np.repeat(np.arange(len(keys)), sizes)[kept]
        pairs = pairs[kept] // MAX_STATES * MAX_STATES + images[kept]
        bounds = np.searchsorted(row, np.arange(len(keys) + 1)).tolist()
        data = memoryview(pairs.tobytes())
        fresh: list[npt.NDArray[np.int32]] = []
        lengths: list[int] = []
        for key, start, stop in zip(keys, bounds, bounds[1:], strict=False):
            if start == stop:
                self._composed[key] = -1
                continue
            text = bytes(data[4 * start : 4 * stop])
            number = self._number.setdefault(text, len(self._number))
            if number == len(self._start) - 1 + len(lengths):
                fresh.append(pairs[start:stop])
                lengths.append(stop - start)
            self._composed[key] = number
        if fresh:
            self._pairs = np.concatenate([self._pairs, *fresh])
            self._start = np.concatenate([self._start, self._start[-1] + np.cumsum(lengths)])


def _distances(sources: npt.NDArray[np.int64], targets: Int32, ends: Bool) -> Int32:
    """Moves on the shortest way from each state to an end; the nearest states first, backwards."""
    order = np.argsort(targets, kind="stable")
    sources, start = sources[order], np.searchsorted(targets[order], np.arange(len(ends) + 1))
    distance = np.where(ends, 0, FAR).astype(np.int32)
    fresh = np.flatnonzero(ends)
    while fresh.size:
        before = np.unique(sources[_ranges(start[fresh], start[fresh + 1] - start[fresh])])
        reached = distance[fresh[0]] + 1
        fresh = before[distance[before] == FAR]
        distance[fresh] = reached
    return distance


def _ranges(starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """start, start + 1, ... for each start, `sizes` of them."""
    stops = np.cumsum(sizes)
    total = int(stops[-1]) if len(stops) else 0
    return np.arange(total) + np.repeat(starts - stops + sizes, sizes)
