"""Where a generation stands in a text with marked parts: free, armed (a trigger has begun), or inside of a part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ...errors import MatcherError
from ...receipt import Receipt
from ...vocabulary.token_table import TokenTable
from ...vocabulary.triggers import FIRST_CONTROL, Symbols, TokenIndex, Triggers
from ...vocabulary.vocabulary import MaskRow
from ..interface import Matcher
from ..token_matcher import CompiledGrammar, TokenMatcher


@dataclass(frozen=True)
class Scan:
    """Text that is free until one of `triggers` has appeared.

    targets     the place after a match, by what `triggers.matched` tells
    may_end     the end of sequence is allowed here
    suspects    tokens that hold a trigger and more
    path        where it is not: the pattern that leads to the shortest end
    num_after   and the tokens needed after it
    rows        by state of the search, what is allowed where that is not everything; that of state 0, and a bounded
                number of others as states are met
    paths       by state, the tokens that complete `path`
    """

    triggers: Triggers
    targets: Mapping[tuple[int, ...], int]
    may_end: bool
    suspects: tuple[int, ...] = ()
    path: int = 0
    num_after: int = 0
    rows: dict[int, MaskRow | None] = field(default_factory=dict)
    paths: dict[int, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Body:
    """Text under a grammar.

    leaves_to    the place after the first complete word; None: nothing follows the grammar's words
    suspects     tokens that may end the word and go on with something that is not allowed there
    """

    grammar: CompiledGrammar
    leaves_to: int | None
    suspects: tuple[int, ...] = ()


Place = Scan | Body


def encode(tokens: TokenTable, symbols: Symbols) -> list[int]:
    """The model's tokens for a text with control tokens in it."""
    result: list[int] = []
    text = bytearray()
    for symbol in symbols:
        if symbol < FIRST_CONTROL:
            text.append(symbol)
            continue
        result += [*tokens.encode(bytes(text)), symbol - FIRST_CONTROL] if text else [symbol - FIRST_CONTROL]
        text.clear()
    return result + tokens.encode(bytes(text)) if text else result


MAX_ROWS = 128
"""Rows that are kept for a `Scan`."""
MAX_EFFORT = 4_000
"""Of preparing the rows of a `Scan`, in tokens that are tried (12 us)."""
SEARCH_EFFORT = 10
"""Of looking for the tokens that begin with a text."""


class StructuralGrammar:
    """A `Grammar` of places; `start` is the number of the first."""

    def __init__(
        self, places: list[Place], start: int, tokens: TokenTable, index: TokenIndex, receipt: Receipt | None
    ) -> None:
        self.places = places
        self.start = start
        self.tokens = tokens
        self.receipt = receipt
        self.tabulation = None
        self.num_bytes = 50_000 + sum(place.grammar.num_bytes for place in places if isinstance(place, Body))
        self._index = index
        scans = [place for place in places if isinstance(place, Scan)]
        self.num_bytes += sum(min(scan.triggers.num_states, MAX_ROWS) * 4 * tokens.num_words for scan in scans)
        bits = np.zeros(32 * tokens.num_words, dtype=np.uint8)
        bits[: tokens.vocabulary.size] = 1
        self.everything: MaskRow = np.packbits(bits, bitorder="little").view(np.int32)

    def matcher(self) -> StructuralMatcher:
        """A fresh matcher at the start state."""
        return StructuralMatcher(self)

    def min_tokens(self) -> int | None:
        """Tokens of a short text."""
        return self.num_needed(self.start, 0)

    def symbols(self, token: int) -> Symbols:
        """What `token` adds to the text."""
        table = self.tokens.vocabulary.tokens
        return (table[token] if token < len(table) else None) or (FIRST_CONTROL + token,)

    def row(self, place: int, state: int) -> MaskRow | None:
        """What is allowed at a state of a `Scan`; None: everything."""
        scan = self.places[place]
        assert isinstance(scan, Scan)
        try:
            return scan.rows[state]
        except KeyError:
            pass
        refused = [token for token in self._doubtful(scan, state) if not self._possible(place, state, token)]
        if not scan.may_end:
            refused += self.tokens.eos_ids
        row = _without(self.everything, refused) if refused else None
        if len(scan.rows) >= MAX_ROWS:
            for known in list(scan.rows)[1:]:  # the first is state 0; a mask of another thread may be doing the same
                scan.rows.pop(known, None)
        scan.rows[state] = row
        return row

    def prepare(self, place: int) -> None:
        """Finds out what is allowed at the states of a `Scan`, with bounded effort, before a text comes to them."""
        scan = self.places[place]
        assert isinstance(scan, Scan)
        effort = 0
        for state in range(min(scan.triggers.num_states, MAX_ROWS)):
            effort += SEARCH_EFFORT * len(scan.triggers.rests(state)) + len(self._doubtful(scan, state))
            if state and effort > MAX_EFFORT:
                return
            self.row(place, state)

    def _doubtful(self, scan: Scan, state: int) -> set[int]:
        """The tokens that complete a pattern and hold more than it."""
        return {*self._index.crossing(scan.triggers, state), *scan.suspects}

    def known_free(self, place: int, state: int) -> bool:
        """Whether everything is allowed at a state of a `Scan`, and that has been seen before."""
        scan = self.places[place]
        assert isinstance(scan, Scan)
        return scan.rows.get(state, self.everything) is None

    def path(self, place: int, state: int) -> list[int]:
        """The tokens that lead from a state of a `Scan` that must not end to where it leads on."""
        scan = self.places[place]
        assert isinstance(scan, Scan)
        if state not in scan.paths:
            rest = scan.triggers.rest(state, scan.path)
            _, length = scan.triggers.walk(state, rest)
            scan.paths[state] = encode(self.tokens, rest[:length])
        return scan.paths[state]

    def num_needed(self, place: int, state: int) -> int:
        """About how many tokens a text needs to be complete, from the beginning of a place or a state of a `Scan`."""
        here = self.places[place]
        if isinstance(here, Body):
            return here.grammar.min_tokens() or 0
        return 0 if here.may_end else len(self.path(place, state)) + here.num_after

    def _possible(self, place: int, state: int, token: int) -> bool:
        trial = StructuralMatcher(self, place, state)
        try:
            trial.follow(self.symbols(token))
        except MatcherError:
            return False
        return True


def _without(row: MaskRow, tokens: list[int]) -> MaskRow:
    """A copy of `row` that does not allow `tokens`."""
    left = row.view(np.uint32).copy()
    refused = np.array(tokens, dtype=np.uint32)
    np.bitwise_and.at(left, refused // 32, ~(np.uint32(1) << refused % 32))
    return left.view(np.int32)


@dataclass
class _Inside:
    """A matcher of the grammar inside of a part, and how many tokens it was fed. Left alone once its part has ended."""

    matcher: TokenMatcher
    num_fed: int = 0

    def copy(self) -> _Inside:
        return _Inside(self.matcher.copy(), self.num_fed)


class _Mark(NamedTuple):
    """A state to go back to, and the token taken there.

    `num_insides` parts were begun by then, and the last one had been fed `num_fed` tokens.
    """

    token: int
    place: int
    state: int
    num_insides: int
    num_fed: int


class StructuralMatcher(Matcher):
    """In free text it only looks for triggers in the bytes that go by, and nothing is masked."""

    def __init__(self, grammar: StructuralGrammar, place: int | None = None, state: int = 0) -> None:
        self.grammar = grammar
        self._history: list[_Mark] = []
        self._insides: list[_Inside] = []
        self._place = grammar.start if place is None else place
        self._state = state
        if self._body is not None:
            self._enter(self._place)

    @property
    def free(self) -> bool:
        """Every token is allowed here, no mask is needed. Where that is not known yet, it takes a mask to find out."""
        return self._body is None and self.grammar.known_free(self._place, self._state)

    @property
    def taken(self) -> list[int]:
        """The tokens accepted so far."""
        return [mark.token for mark in self._history]

    @property
    def accepting(self) -> bool:
        """The text may end here."""
        if self._body is not None:
            return self._insides[-1].matcher.accepting
        return self._scan.may_end

    @property
    def finished(self) -> bool:
        """Nothing but the end of sequence is allowed here."""
        return self._body is not None and self._insides[-1].matcher.finished

    @property
    def closed(self) -> bool:
        """The budget cut a part short."""
        return self._body is not None and self._insides[-1].matcher.closed

    def min_tokens(self) -> int | None:
        """Tokens of a short text."""
        return self.grammar.min_tokens()

    def fill_mask(self, out: MaskRow) -> None:
        """Writes the tokens allowed next. Raises MatcherError at a dead end."""
        body = self._body
        if body is None:
            row = self.grammar.row(self._place, self._state)
            row = self.grammar.everything if row is None else row
            if out.shape != row.shape or out.dtype != row.dtype:
                raise MatcherError(f"a mask row must be {len(row)} int32 words, got {out.shape}")
            out[:] = row
            return
        self._insides[-1].matcher.fill_mask(out)
        suspects = np.array(body.suspects, dtype=np.int64)
        allowed = suspects[out[suspects // 32] >> (suspects % 32) & 1 != 0].tolist()
        out[:] = _without(out, [token for token in allowed if not self._possible(token)])

    def accept(self, token: int, remaining: int | None = None, patience_s: float | None = None) -> int:
        """Advances by `token`, or by one that leaves a way to the end within `remaining`, and returns the one taken."""
        if self._pass_by(token):
            return token
        if token in self.grammar.tokens.eos_ids:
            if not self.accepting:
                raise MatcherError("the end of sequence is not allowed here")
            return token
        if not 0 <= token < self.grammar.tokens.vocabulary.size:
            raise MatcherError(f"token {token} is not allowed here")
        mark = self._mark(token)
        body = self._body
        taken = token
        try:
            if body is not None:
                taken = self._accept_inside(body, mark, token, remaining, patience_s)
            else:
                taken = self._accept_free(mark, token, remaining, patience_s)
        except MatcherError:
            self._restore(mark)
            raise
        if taken not in self.grammar.tokens.eos_ids:
            self._history.append(mark if taken == token else mark._replace(token=taken))
        return taken

    def forced_tokens(self) -> list[int]:
        """The tokens that the grammar forces next."""
        return self._insides[-1].matcher.forced_tokens() if self._body is not None else []

    def rollback(self, num_tokens: int) -> None:
        """Takes back the last `num_tokens` accepted tokens; ends of sequence do not count."""
        if num_tokens < 0 or num_tokens > len(self._history):
            raise MatcherError(f"cannot take back {num_tokens} of {len(self._history)} tokens")
        if num_tokens:
            mark = self._history[-num_tokens]
            del self._history[-num_tokens:]
            self._restore(mark)

    def copy(self) -> StructuralMatcher:
        """An independent matcher in the same state."""
        other = StructuralMatcher.__new__(StructuralMatcher)
        other.grammar = self.grammar
        other._history = list(self._history)
        other._place, other._state = self._place, self._state
        other._insides = list(self._insides)  # those left alone are shared: nobody changes them
        if self._body is not None:
            other._insides[-1] = self._insides[-1].copy()
        return other

    def follow(self, symbols: Symbols) -> None:
        """Advances by a text, with no regard to the budget. After a MatcherError the state is void."""
        while symbols:
            body = self._body
            if body is None:
                scan = self._scan
                self._state, count = scan.triggers.walk(self._state, symbols)
                matched = scan.triggers.matched(self._state)
                if matched:
                    self._enter(scan.targets[matched])
            else:
                count = self._feed(body, symbols)
            symbols = symbols[count:]

    @property
    def _body(self) -> Body | None:
        place = self.grammar.places[self._place]
        return place if isinstance(place, Body) else None

    @property
    def _scan(self) -> Scan:
        place = self.grammar.places[self._place]
        assert isinstance(place, Scan)
        return place

    def _mark(self, token: int) -> _Mark:
        num_fed = self._insides[-1].num_fed if self._body is not None else 0
        return _Mark(token, self._place, self._state, len(self._insides), num_fed)

    def _restore(self, mark: _Mark) -> None:
        left = self._body is None or len(self._insides) != mark.num_insides
        del self._insides[mark.num_insides :]
        self._place, self._state = mark.place, mark.state
        if self._body is None:
            return
        inside = self._insides[-1].copy() if left else self._insides[-1]
        inside.matcher.rollback(inside.num_fed - mark.num_fed)
        inside.num_fed = mark.num_fed
        self._insides[-1] = inside

    def _enter(self, place: int) -> None:
        """Goes to the beginning of a place, and through it if the empty text is all that it needs."""
        self._place, self._state = place, 0
        body = self._body
        if body is not None:
            self._insides.append(_Inside(body.grammar.matcher()))
            if body.leaves_to is not None and self._insides[-1].matcher.accepting:
                self._enter(body.leaves_to)

    def _feed(self, body: Body, symbols: Symbols) -> int:
        """Advances inside of a part by as few symbols as there is a token for; returns how many."""
        inside = self._insides[-1]
        if symbols[0] >= FIRST_CONTROL:
            token, count = symbols[0] - FIRST_CONTROL, 1
        else:
            token, count = self._shortest_token(symbols)
        inside.matcher.accept(token)
        inside.num_fed += 1
        if body.leaves_to is not None and inside.matcher.accepting:
            self._enter(body.leaves_to)
        return count

    def _shortest_token(self, symbols: Symbols) -> tuple[int, int]:
        text = bytes(symbol for symbol in symbols if symbol < FIRST_CONTROL)
        for length in range(1, len(text) + 1):
            token = self.grammar.tokens.prefix(text[:length])
            if token is not None:
                return token, length
        raise MatcherError("no token writes this text")

    def _pass_by(self, token: int) -> bool:
        """Takes a token of free text that may end: the common case, in which there is nothing more to look at."""
        here = self.grammar.places[self._place]
        vocabulary = self.grammar.tokens.vocabulary
        if isinstance(here, Body) or not here.may_end or not 0 <= token < len(vocabulary.tokens):
            return False
        text = vocabulary.tokens[token]
        if not text or token in vocabulary.eos_ids:
            return False
        state, _ = here.triggers.walk(self._state, text)
        if here.triggers.matched(state):
            return False
        self._history.append(_Mark(token, self._place, self._state, len(self._insides), 0))
        self._state = state
        return True

    def _accept_inside(
        self, body: Body, mark: _Mark, token: int, remaining: int | None, patience_s: float | None
    ) -> int:
        taken = self._take_inside(body, token, remaining, patience_s)
        begun = len(self._insides) > mark.num_insides
        if taken in self.grammar.tokens.eos_ids or not begun or self._fits(remaining, patience_s):
            return taken
        self._restore(mark)  # the token ends this part, and begins another one that would be cut off
        short = self._insides[-1].matcher.search((remaining or 0) + 1, patience_s)
        return self._take_inside(body, short[0] if short else token, remaining, patience_s)

    def _take_inside(self, body: Body, token: int, remaining: int | None, patience_s: float | None) -> int:
        inside = self._insides[-1]
        taken = inside.matcher.accept(token, remaining, patience_s)
        if taken in self.grammar.tokens.eos_ids:
            return taken
        inside.num_fed += 1
        if body.leaves_to is not None and inside.matcher.accepting:
            rest = self._rest_after_end(inside, taken)
            self._enter(body.leaves_to)
            self.follow(rest)
        return taken

    def _rest_after_end(self, inside: _Inside, token: int) -> Symbols:
        """What is left of the token with which a part became complete."""
        symbols = self.grammar.symbols(token)
        if len(symbols) == 1:
            return ()
        trial = inside.matcher.copy()
        trial.rollback(1)
        count = 0
        while count < len(symbols) and not trial.accepting:
            piece, length = self._shortest_token(symbols[count:])
            trial.accept(piece)
            count += length
        return symbols[count:]

    def _accept_free(self, mark: _Mark, token: int, remaining: int | None, patience_s: float | None) -> int:
        """Takes `token`; or ends the text if it begins a part that would be cut off; or goes to what must come."""
        grammar, scan = self.grammar, self._scan
        self.follow(grammar.symbols(token))
        if self._fits(remaining, patience_s):
            return token
        self._restore(mark)
        if scan.may_end:
            return min(grammar.tokens.eos_ids)
        taken = grammar.path(mark.place, mark.state)[0]
        self.follow(grammar.symbols(taken))
        return taken

    def _fits(self, remaining: int | None, patience_s: float | None) -> bool:
        """Whether what must still come fits into `remaining` tokens, as far as that is known."""
        if remaining is None:
            return True
        body = self._body
        if body is None:
            return self.grammar.num_needed(self._place, self._state) <= remaining
        if remaining >= body.grammar.guarded_tokens or body.grammar.witness is None:
            return True
        inside = self._insides[-1].matcher
        witness = inside.search(remaining, patience_s)
        if witness is not None:
            inside.expect(witness)
        return witness is not None

    def _possible(self, token: int) -> bool:
        trial = self.copy()
        try:
            trial.accept(token)
        except MatcherError:
            return False
        return True
