"""Regular constraints as tables: the state of a generation is a number, and its mask a precomputed row."""

from __future__ import annotations

import math
import re
import threading
from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from re import _constants, _parser  # type: ignore[attr-defined]  # the standard library's own parser of patterns
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from ...errors import GrammarError, GrammarTooComplexError, MatcherError
from ...lowered import Tabulate
from ...receipt import Receipt
from ...regex.automaton import MAX_STATES, Automaton, compile_parts, compile_words
from ...vocabulary.token_table import MAX_FORCED_BYTES, Level, TokenTable, build_trie
from ...vocabulary.vocabulary import MaskRow
from ..interface import Grammar, Matcher, TableArrays, Tabulation

MAX_MOVES = 1 << 24
"""Most pairs of a state and a class of tokens, or of token prefixes, that it allows."""

FAR = np.iinfo(np.int32).max

T = TypeVar("T")
Int32 = npt.NDArray[np.int32]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TokenMoves:
    """An automaton over equivalence classes of tokens. State 0 is the start.

    token_class   int32 [V]    0: no state allows the token, or it ends the text
    first         int64 [S + 1]
    kinds         int32 [M]    kinds[first[s] : first[s + 1]]: classes that state s allows, ascending
    targets       int32 [M]    state after each
    ends          bool [S]     the text may end
    distance      int32 [S]    tokens of the shortest way to an end; FAR: there is none in this vocabulary, and no move
                               leads to the state
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
        """Number of classes in use, class 0 included."""
        return int(self.kinds.max(initial=0)) + 1

    @property
    def num_bytes(self) -> int:
        parts = (self.token_class, self.first, self.kinds, self.targets, self.ends, self.distance)
        return sum(part.nbytes for part in parts)

    def row(self, state: int, eos_ids: Collection[int], num_words: int) -> Int32:
        """Returns the mask of a state, int32 [num_words]."""
        allowed = np.zeros(self.num_classes, np.uint8)
        allowed[self.kinds[self.first[state] : self.first[state + 1]]] = 1
        bits = np.zeros(32 * num_words, np.uint8)
        bits[: len(self.token_class)] = allowed[self.token_class]
        if self.ends[state]:
            bits[list(eos_ids)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    def dense(self, eos_ids: Collection[int]) -> tuple[Int32, Int32]:
        """Returns classes int32 [V] and next states int32 [S + 1, C + 1], -1 where there is none.

        The tokens that end the text have the last class, which leads to the last state, where nothing is allowed.
        """
        token_class = self.token_class.copy()
        token_class[list(eos_ids)] = self.num_classes
        following = np.full((self.num_states + 1, self.num_classes + 1), -1, np.int32)
        following[np.repeat(np.arange(self.num_states), np.diff(self.first)), self.kinds] = self.targets
        following[:-1][self.ends, -1] = self.num_states
        return token_class, following


def token_moves(automaton: Automaton, trie: Sequence[Level], vocab_size: int) -> TokenMoves:
    """Returns the exact moves of `automaton` on the tokens of `trie`.

    A token is a partial function from states to states. The functions of the trie's nodes are composed level by level,
    each distinct one once: there are few, or they are defined for few states.

    Raises:
        GrammarError: no sequence of tokens is a text that `automaton` matches.
        GrammarTooComplexError: the moves take too much memory.
    """
    functions = _Functions(automaton)
    token_function = np.full(vocab_size, -1, np.int64)
    at = np.zeros(1, np.int64)  # the root's function is the first: the identity
    for level in trie:
        at = functions.compose(at[level.parent], level.byte)
        token_function[level.tokens] = at[level.nodes]
    used, kind = np.unique(token_function, return_inverse=True)
    assert used[0] == -1, "the end of sequence has no text"
    sources, targets, sizes = functions.pairs(used[1:])
    ends = automaton.tables()[2]
    distance = _distances(sources, targets, ends)
    if distance[0] == FAR:
        raise GrammarError("no tokens of the model spell a text that the constraint allows")
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
    """Partial functions from states to states, each stored once, as ascending state * MAX_STATES + image."""

    def __init__(self, automaton: Automaton) -> None:
        self._classes, self._following, _ = automaton.tables()
        self._num_classes = self._following.shape[1]
        identity = (np.arange(automaton.num_states) * (MAX_STATES + 1)).astype(np.int32)
        self._pairs = identity
        self._start = np.array([0, len(identity)])
        self._number = {identity.tobytes(): 0}
        self._composed: dict[int, int] = {}  # function * num_classes + class -> function, -1: defined nowhere

    def compose(self, functions: npt.NDArray[np.int64], last: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        """Composes each of `functions` [N] (-1: defined nowhere) with its byte of `last` [N], applied after it."""
        alive = np.flatnonzero(functions >= 0)
        keys = functions[alive] * self._num_classes + self._classes[last[alive]]
        distinct, place = np.unique(keys, return_inverse=True)
        self._add([key for key in distinct.tolist() if key not in self._composed])
        found = np.full(len(functions), -1, np.int64)
        found[alive] = np.array([self._composed[key] for key in distinct.tolist()], np.int64)[place]
        return found

    def pairs(self, functions: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], Int32, npt.NDArray[np.int64]]:
        """Returns the domains of `functions`, concatenated: the states, their images, and the number of states of each
        function."""
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
    """Computes the length of the shortest way from each state to an end, by a backward breadth-first search."""
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
    """Returns start, start + 1, ... for each of `starts`, as many as its entry of `sizes`."""
    stops = np.cumsum(sizes)
    total = int(stops[-1]) if len(stops) else 0
    return np.arange(total) + np.repeat(starts - stops + sizes, sizes)


MAX_ROW_BYTES = 64 << 20
"""Limit on the cached rows of one grammar; beyond it all are dropped, and recomputed on demand."""
MAX_FORCED = 1 << 16
"""Limit on the cached forced tokens of one grammar, over all states; beyond it all are dropped, and recomputed."""

_STATE_BYTES = 200
_FORCED_BYTES = 40
"""Measured memory of a list per state, and per token."""


class _Found(Generic[T]):
    """Cache of values by state, in `of`. Beyond `limit` units all are dropped. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self.of: dict[int, T] = {}
        self._limit = limit
        self._size = 0
        self._lock = threading.Lock()

    def keep(self, state: int, value: T, size: int) -> T:
        """Caches a value of `size` units, and returns it."""
        with self._lock:
            if self._size + size > self._limit:
                self.of.clear()
                self._size = 0
            if state not in self.of:
                self.of[state] = value
                self._size += size
        return value


class RegularGrammar:
    """A `Grammar` over the moves of an automaton. Thread-safe.

    `plain` is the same constraint as a grammar that is followed step by step. It takes over where a JSON text must be
    closed because the budget is too small for any word. Masks and forced tokens are the same in both: where text is
    forced, the mask allows only the first of the model's own tokens for it, although other tokens that write it are
    followed too. Rows and forced tokens of a state are computed when it is first visited.
    """

    def __init__(self, automaton: Automaton, moves: TokenMoves, tokens: TokenTable, *, plain: Grammar) -> None:
        self.tokens = tokens
        self.moves = moves
        self.plain = plain
        self.receipt: Receipt | None = plain.receipt
        self.tabulation = None
        row_bytes = min(4 * tokens.num_words * moves.num_states, MAX_ROW_BYTES)
        forced_bytes = _FORCED_BYTES * min(moves.num_states**2, MAX_FORCED)
        self.num_bytes = plain.num_bytes + moves.num_bytes + row_bytes + forced_bytes + _STATE_BYTES * moves.num_states
        self.distance: list[int] = moves.distance.tolist()
        self.ends: list[bool] = moves.ends.tolist()
        self.farthest = max(distance for distance in self.distance if distance != FAR)
        self._only_ways = _only_ways(automaton)
        self._rows = _Found[MaskRow](max(MAX_ROW_BYTES // (4 * tokens.num_words), 1))
        self._forced = _Found[list[int]](MAX_FORCED)
        self._example, self._longest = _of_classes(moves, tokens)
        self._longest_of_all = int(self._longest.max())

    def matcher(self) -> RegularMatcher:
        """Returns a new matcher at the start state."""
        return RegularMatcher(self)

    def min_tokens(self) -> int | None:
        """Tokens of the shortest word."""
        return self.distance[0]

    def row(self, state: int) -> MaskRow:
        """Returns the mask of a state; it must not be written to."""
        row = self._rows.of.get(state)
        return self._rows.keep(state, self._make_row(state), 1) if row is None else row

    @property
    def size(self) -> tuple[int, int]:
        """Numbers of states and classes of its arrays: those of the moves, and one of each for the end of sequence."""
        return self.moves.num_states + 1, self.moves.num_classes + 1

    def arrays(self) -> TableArrays:
        """Builds the whole table. Where text is forced, the mask allows one of the tokens that have a next state."""
        token_class, following = self.moves.dense(self.tokens.eos_ids)
        mask = np.zeros((len(following), self.tokens.num_words), np.int32)
        for state in range(len(following) - 1):
            mask[state] = self._make_row(state)
        return TableArrays(mask, token_class, following)

    def _make_row(self, state: int) -> MaskRow:
        """Computes the mask of a state."""
        forced = self.forced(state)
        if forced:
            return self.tokens.single(forced[0])
        return self.moves.row(state, self.tokens.eos_ids, self.tokens.num_words)

    def edges(self, state: int) -> slice:
        """Returns the slice of the moves that holds the classes allowed by `state`, ascending, and the states after
        them."""
        return slice(int(self.moves.first[state]), int(self.moves.first[state + 1]))

    def following(self, state: int, token: int) -> int:
        """Returns the state after `token`, or -1 if there is none. Where text is forced, also follows other tokens that
        write it than the one that the mask allows."""
        if not 0 <= token < len(self.moves.token_class):
            return -1
        edges, kind = self.edges(state), self.moves.token_class[token]
        place = edges.start + int(np.searchsorted(self.moves.kinds[edges], kind))
        return int(self.moves.targets[place]) if place < edges.stop and self.moves.kinds[place] == kind else -1

    def nearer(self, state: int) -> tuple[int, int]:
        """Returns a token that leads a step nearer to the end, and the state after it. `state` must not be an end."""
        edges, wanted = self.edges(state), self.distance[state] - 1
        place = edges.start + int(np.argmax(self.moves.distance[self.moves.targets[edges]] == wanted))
        return int(self._example[self.moves.kinds[place]]), int(self.moves.targets[place])

    def forced(self, state: int) -> list[int]:
        """Returns the tokens of the text that must follow, without those at its end that longer ones could replace."""
        tokens = self._forced.of.get(state)
        if tokens is None:
            tokens = self._find_forced(state)
            self._forced.keep(state, tokens, len(tokens))
        return tokens

    def _find_forced(self, state: int) -> list[int]:
        text, states = self._forced_text(state)
        if not text or 0x80 <= text[0] < 0xC0:  # inside a character, whose token began earlier
            return []
        if len(text) > MAX_FORCED_BYTES:
            return self.tokens.encode_beginning(text)
        # The forced tokens end at the first place where an allowed token extends beyond the forced text.
        stop = len(text)
        for place in range(max(len(text) - self._longest_of_all, 0), len(text)):
            kinds = self.moves.kinds[self.edges(states[place])]
            if self._longest[kinds].max(initial=0) > len(text) - place:
                stop = place
                break
        tokens: list[int] = []
        place = 0
        for token in self.tokens.encode(text):
            place += len(self.tokens.vocabulary.tokens[token] or b"")
            state = self.following(state, token)
            if place > stop or state < 0:
                break
            tokens.append(token)
        return tokens

    def _forced_text(self, state: int) -> tuple[bytes, list[int]]:
        """Returns the bytes that must come next, up to the first choice or one more than the limit; and the states
        before and after each."""
        only_byte, after = self._only_ways
        text, states = bytearray(), [state]
        while len(text) <= MAX_FORCED_BYTES and (byte := only_byte[state]) >= 0:
            text.append(byte)
            state = after[state]
            states.append(state)
        return bytes(text), states


def _only_ways(automaton: Automaton) -> tuple[array[int], array[int]]:
    """Returns the byte that must come next in each state, -1 at a choice or an end, and the state after it."""
    classes, following, ends = automaton.tables()
    allowed = following >= 0
    kind = allowed.argmax(axis=1)
    letters, first, number = np.unique(classes, return_index=True, return_counts=True)
    byte, size = np.full(following.shape[1], -1, np.int32), np.zeros(following.shape[1], np.int32)
    byte[letters], size[letters] = first, number
    forced = (allowed.sum(axis=1) == 1) & (size[kind] == 1) & ~ends
    after = following[np.arange(len(kind)), kind]
    return array("i", np.where(forced, byte[kind], -1).tolist()), array("i", after.tolist())


class RegularMatcher(Matcher):
    """Matcher whose state is a number.

    There is always a way to the end within the budget: a token that leads too far from it is replaced by one of the
    shortest way.
    """

    free = False  # read in each step: an attribute is faster than a property

    def __init__(self, grammar: RegularGrammar) -> None:
        self.grammar = grammar
        self._states = [0]  # after each token taken
        self._taken: list[int] = []
        self._plain: Matcher | None = None  # closes a text for which the budget is too small

    @property
    def state(self) -> int | None:
        """State in the grammar's table; None if another matcher has taken over."""
        return self._states[-1] if self._plain is None else None

    @property
    def successor(self) -> RegularMatcher:
        """The matcher itself, even where another one closes the text."""
        return self

    @property
    def closed(self) -> bool:
        """True if the budget cut the word short: its text is JSON, but not a word of the constraint."""
        return self._plain is not None and self._plain.closed

    @property
    def on_table(self) -> RegularMatcher | None:
        """The matcher itself unless another one has taken over."""
        return self if self._plain is None else None

    @property
    def taken(self) -> Sequence[int]:
        """Tokens accepted so far. Must not be changed."""
        return self._taken if self._plain is None else self._plain.taken

    @property
    def accepting(self) -> bool:
        """True where the text so far is a complete word."""
        return self._plain.accepting if self._plain is not None else self.grammar.ends[self._states[-1]]

    @property
    def finished(self) -> bool:
        """True where nothing but the end of sequence is allowed."""
        if self._plain is not None:
            return self._plain.finished
        edges = self.grammar.edges(self._states[-1])
        return len(self.grammar.moves.kinds[edges]) == 0

    def min_tokens(self) -> int | None:
        """Tokens of the shortest word."""
        return self.grammar.min_tokens()

    def fill_mask(self, out: MaskRow) -> None:
        """Writes the tokens allowed next."""
        if self._plain is not None:
            self._plain.fill_mask(out)
            return
        row = self.grammar.row(self._states[-1])
        try:
            out[:] = row
        except ValueError:
            raise MatcherError(f"a mask row must be {len(row)} int32 words, got {out.shape}") from None

    def fill_along(self, drafts: Sequence[int], out: Int32) -> int:
        """Writes the masks before and after each of `drafts`; returns the number of valid ones. Copies nothing."""
        if self._plain is not None:
            return super().fill_along(drafts, out)
        self.fill_mask(out[0])
        grammar, state, right = self.grammar, self._states[-1], 1
        for draft in drafts:
            state = grammar.following(state, draft)
            if state < 0:
                break
            out[right] = grammar.row(state)
            right += 1
        return right

    def accept(self, token: int, remaining: int | None = None, patience_s: float | None = None) -> int:
        """Advances by `token`, or by one that leaves a way to the end within `remaining`, and returns the one taken."""
        if self._plain is not None:
            return self._plain.accept(token, remaining, patience_s)
        grammar, state = self.grammar, self._states[-1]
        if token in grammar.tokens.eos_ids:
            if not grammar.ends[state]:
                raise MatcherError("the end of sequence is not allowed here")
            return token
        target = grammar.following(state, token)
        if target < 0:
            raise MatcherError(f"token {token} is not allowed here")
        if remaining is not None and grammar.distance[target] > remaining:
            if grammar.distance[state] == 0:
                return min(grammar.tokens.eos_ids)
            if grammar.distance[state] <= remaining + 1:
                token, target = grammar.nearer(state)
            else:
                return self._closing().accept(token, remaining)
        self._states.append(target)
        self._taken.append(token)
        return token

    def _closing(self) -> Matcher:
        """Returns a matcher that continues when the budget is known to be too small for any word."""
        self._plain = self.grammar.plain.matcher()
        for token in self._taken:
            self._plain.accept(token)
        self._plain.give_up()
        return self._plain

    def forced_tokens(self, patience_s: float | None = None) -> list[int]:
        """Returns the tokens that the grammar forces next."""
        if self._plain is not None:
            return self._plain.forced_tokens(patience_s)
        return list(self.grammar.forced(self._states[-1]))

    def rollback(self, num_tokens: int) -> None:
        """Takes back the last `num_tokens` accepted tokens; ends of sequence do not count."""
        if self._plain is not None:
            self._plain.rollback(num_tokens)
            return
        if not 0 <= num_tokens < len(self._states):
            raise MatcherError(f"cannot take back {num_tokens} of {len(self._states) - 1} tokens")
        kept = len(self._taken) - num_tokens
        del self._states[kept + 1 :], self._taken[kept:]

    def copy(self) -> RegularMatcher:
        """Returns an independent matcher in the same state."""
        other = RegularMatcher(self.grammar)
        other._states, other._taken = list(self._states), list(self._taken)
        other._plain = self._plain.copy() if self._plain is not None else None
        return other


def _of_classes(moves: TokenMoves, tokens: TokenTable) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first token of each class, and the length in bytes of its longest one."""
    _, example = np.unique(moves.token_class, return_index=True)
    lengths = np.zeros(len(moves.token_class), np.int64)
    lengths[: len(tokens.vocabulary.tokens)] = [len(text or b"") for text in tokens.vocabulary.tokens]
    longest = np.zeros(int(moves.token_class.max()) + 1, np.int64)
    np.maximum.at(longest, moves.token_class, lengths)
    return example, longest


MAX_SMALL_CHARS = 4_096


def tabulate(job: Tabulate) -> Automaton:
    """Builds the automaton of `job`. Raises GrammarError."""
    if job.parts:
        return compile_parts(job.parts)
    return compile_words(word.encode() for word in job.words)


def is_small_job(job: Tabulate) -> bool:
    """Returns True if the job is certain to take little time and memory, so that it needs no separate process."""
    if job.parts:
        first = job.parts[0]
        return len(job.parts) == len(first.all) == 1 and not first.none and is_small_pattern(first.all[0])
    return sum(map(len, job.words)) <= MAX_SMALL_CHARS


class RegularTables:
    """Builds tables from automata for one vocabulary. Thread-safe."""

    def __init__(self, tokens: TokenTable) -> None:
        self._tokens = tokens
        self._trie: tuple[Level, ...] | None = None
        self._lock = threading.Lock()

    def at_once(self, plain: Grammar, tabulation: Tabulation) -> Grammar:
        """Returns `plain` as a table if that is cheap, else unchanged."""
        if not is_small_job(tabulation.job):
            return plain
        try:
            return self.grammar(tabulate(tabulation.job), plain)
        except GrammarError as error:  # it can still be followed step by step
            tabulation.begin()
            tabulation.table.set_exception(error)
            return plain

    def grammar(self, automaton: Automaton, plain: Grammar) -> RegularGrammar:
        """Returns the constraint `plain` as a table. Raises GrammarError."""
        vocabulary = self._tokens.vocabulary
        with self._lock:
            if self._trie is None:
                self._trie = build_trie(vocabulary.tokens, vocabulary.eos_ids)
        return RegularGrammar(automaton, token_moves(automaton, self._trie, vocabulary.size), self._tokens, plain=plain)


MAX_PATTERN = 4_096
MAX_POSITIONS = 14
"""Most positions of a small pattern: an automaton has at most one state per set of positions; 2^14 take 0.5 s."""
MAX_CHARS = 4_096
"""Most characters of all texts of a small pattern, if finitely many: the automaton has at most a state per prefix."""

_ENDLESS = 1 << 20


def is_small_pattern(pattern: str) -> bool:
    """Returns True if the automaton of `pattern` is certainly small.

    It is if the pattern has few positions, or matches only few short texts. The pattern is parsed as Python's; syntax
    that Rust's regex crate reads differently (classes in classes, Unicode classes) does not count as small.
    """
    if len(pattern) > MAX_PATTERN or "[[" in pattern or "&&" in pattern:
        return False
    try:
        parsed = _parser.parse(_CODE_POINT.sub(_as_python, pattern))
        if parsed.state.flags & re.IGNORECASE and not pattern.isascii():
            return False
        if _positions(parsed) <= MAX_POSITIONS:
            return True
        number, length = _texts(parsed)
        return not parsed.state.flags & re.IGNORECASE and number * length <= MAX_CHARS
    except (re.error, RecursionError, OverflowError, ValueError):
        return False


_CODE_POINT = re.compile(r"((?:^|[^\\])(?:\\\\)*)\\x\{([0-9a-fA-F]{1,6})\}")


def _as_python(match: re.Match[str]) -> str:
    """Returns a code point of more than two digits in Python's notation."""
    return f"{match[1]}\\U{match[2]:0>8}"


def _positions(parsed: Any) -> int:
    """Returns the number of bytes in `parsed` with its repetitions expanded."""
    total = 0
    for kind, value in parsed:
        if kind == _constants.LITERAL:
            total += len(chr(value).encode(errors="replace"))
        elif kind == _constants.IN:
            total += 1 if _is_plain_class(value) else _ENDLESS
        elif kind == _constants.BRANCH:
            total += sum(_positions(branch) for branch in value[1])
        elif kind == _constants.SUBPATTERN:
            _, added, removed, inner = value
            total += _ENDLESS if added or removed else _positions(inner)
        elif kind in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            least, most, inner = value
            times = least + 1 if most == _constants.MAXREPEAT else most
            total += min(times, _ENDLESS) * _positions(inner)
        else:  # any character, look-around, references, anchors
            total += _ENDLESS
    return total


def _texts(parsed: Any) -> tuple[float, float]:
    """Returns upper bounds of the number of texts that `parsed` matches and of their bytes; infinite if unclear."""
    number = 1.0
    length = 0.0
    for kind, value in parsed:
        if kind == _constants.LITERAL:
            times, longest = 1.0, float(len(chr(value).encode(errors="replace")))
        elif kind == _constants.IN and _is_plain_class(value):
            times, longest = float(sum(_width(part) for part in value)), 1.0
        elif kind == _constants.BRANCH:
            branches = [_texts(branch) for branch in value[1]]
            times, longest = sum(one for one, _ in branches), max(one for _, one in branches)
        elif kind == _constants.SUBPATTERN and not value[1] and not value[2]:
            times, longest = _texts(value[3])
        elif kind in (_constants.MAX_REPEAT, _constants.MIN_REPEAT) and value[1] != _constants.MAXREPEAT:
            times, longest = _texts(value[2])
            if value[1] * math.log2(times + 1) > 64:
                return math.inf, 1.0
            times, longest = (times + (value[0] != value[1])) ** value[1], value[1] * longest
        else:
            return math.inf, 1.0
        number, length = number * times, length + longest
    return number, max(length, 1.0)


def _is_plain_class(parts: Any) -> bool:
    """Returns True if a class holds only ASCII characters and ranges of them."""
    return all(
        (kind == _constants.LITERAL and value < 128) or (kind == _constants.RANGE and value[1] < 128)
        for kind, value in parts
    )


def _width(part: Any) -> int:
    kind, value = part
    return value[1] - value[0] + 1 if kind == _constants.RANGE else 1
