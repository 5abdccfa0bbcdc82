"""Matcher of tagged texts: free text with a search for triggers, and bodies under grammars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ...errors import MatcherError
from ...receipt import Receipt
from ...vocabulary.token_table import TokenTable
from ...vocabulary.triggers import FIRST_CONTROL, Symbols, TokenIndex, Triggers, runs
from ...vocabulary.vocabulary import MaskRow
from ..interface import Matcher
from ..token_matcher import CompiledGrammar, TokenMatcher


@dataclass(frozen=True)
class FreeText:
    """Text that is free until one of `triggers` appears.

    targets     section after a match, by the result of `triggers.matched`
    may_end     the end of sequence is allowed here
    suspects    tokens that hold a trigger and more
    path        where it is not: the pattern that leads to the shortest end
    num_after   and the tokens needed after it
    most        tokens of the text after which nothing but the pattern of `path` is allowed (None: any number)
    rows        by state of the search, what is allowed where that is not everything; that of state 0, and a bounded
                number of others as states are met
    paths       by state, the tokens that complete `path`, of a bounded number of states
    """

    triggers: Triggers
    targets: Mapping[tuple[int, ...], int]
    may_end: bool
    suspects: tuple[int, ...] = ()
    path: int = 0
    num_after: int = 0
    most: int | None = None
    rows: dict[int, MaskRow | None] = field(default_factory=dict)
    paths: dict[int, list[int]] = field(default_factory=dict)

    def path_from(self, state: int, tokens: TokenTable) -> list[int]:
        """Returns the tokens that complete `path` from a state of the search."""
        path = self.paths.get(state)
        if path is None:
            rest = self.triggers.rest(state, self.path)
            _, length = self.triggers.walk(state, rest)
            path = encode(tokens, rest[:length])
            if len(self.paths) >= MAX_ROWS:
                self.paths.clear()
            self.paths[state] = path
        return path

    def num_needed(self, tokens: TokenTable, state: int = 0) -> int:
        """Returns the approximate number of tokens that complete the text from a state of the search."""
        return 0 if self.may_end else len(self.path_from(state, tokens)) + self.num_after


@dataclass(frozen=True)
class Body:
    """Text under a grammar.

    leaves_to    section after the first complete word; None: nothing follows the grammar's words
    suspects     tokens that may end the word and continue with something that is not allowed there
    """

    grammar: CompiledGrammar
    leaves_to: int | None
    suspects: tuple[int, ...] = ()

    def num_needed(self, _tokens: TokenTable, _state: int = 0) -> int:
        """Returns the number of tokens of a short word."""
        return self.grammar.min_tokens() or 0


Section = FreeText | Body


def encode(tokens: TokenTable, symbols: Symbols) -> list[int]:
    """Returns the model's tokens for a text with control tokens."""
    return [token for run in runs(symbols) for token in ([run] if isinstance(run, int) else tokens.encode(run))]


MAX_ROWS = 128
"""Most rows cached for a `FreeText`."""
MAX_EFFORT = 4_000
"""Limit of effort for preparing the rows of a `FreeText`, in tokens tried (12 us each)."""
SEARCH_EFFORT = 10
"""Effort of a search for the tokens that begin with a text, in tokens tried."""


class StructuralGrammar:
    """A `Grammar` of sections; `start` is the number of the first."""

    def __init__(
        self, sections: tuple[Section, ...], start: int, tokens: TokenTable, index: TokenIndex, receipt: Receipt | None
    ) -> None:
        self.sections = sections
        self.start = start
        self.tokens = tokens
        self.receipt = receipt
        self.tabulation = None
        self.num_bytes = 50_000 + sum(section.grammar.num_bytes for section in sections if isinstance(section, Body))
        self._index = index
        texts = [section for section in sections if isinstance(section, FreeText)]
        self.num_bytes += sum(min(free.triggers.num_states, MAX_ROWS) * 4 * tokens.num_words for free in texts)
        self.num_bytes += sum(free.triggers.num_bytes for free in texts)
        self.num_bytes += receipt.num_bytes if receipt is not None else 0
        bits = np.zeros(32 * tokens.num_words, dtype=np.uint8)
        bits[: tokens.vocabulary.size] = 1
        self.everything: MaskRow = np.packbits(bits, bitorder="little").view(np.int32)

    def matcher(self) -> StructuralMatcher:
        """Returns a new matcher at the start state."""
        return StructuralMatcher(self)

    def min_tokens(self) -> int | None:
        """Returns the number of tokens of a short text."""
        return self.sections[self.start].num_needed(self.tokens)

    def symbols(self, token: int) -> Symbols:
        """Returns the symbols that `token` adds to the text."""
        table = self.tokens.vocabulary.tokens
        return (table[token] if token < len(table) else None) or (FIRST_CONTROL + token,)

    def row(self, section: int, state: int) -> MaskRow | None:
        """Returns the mask at a state of a `FreeText`; None if everything is allowed."""
        free = self.sections[section]
        assert isinstance(free, FreeText)
        try:
            return free.rows[state]
        except KeyError:
            pass
        refused = [token for token in self._doubtful(free, state) if not self._possible(section, state, token)]
        if not free.may_end:
            refused += self.tokens.eos_ids
        row = _without(self.everything, refused) if refused else None
        if len(free.rows) >= MAX_ROWS:
            for known in list(free.rows)[1:]:  # the first is state 0; another thread may do the same
                free.rows.pop(known, None)
        free.rows[state] = row
        return row

    def prepare(self, section: int) -> None:
        """Computes the masks of a `FreeText`'s states in advance, with bounded effort."""
        free = self.sections[section]
        assert isinstance(free, FreeText)
        effort = 0
        for state in range(min(free.triggers.num_states, MAX_ROWS)):
            effort += SEARCH_EFFORT * len(free.triggers.rests(state)) + len(self._doubtful(free, state))
            if state and effort > MAX_EFFORT:
                return
            self.row(section, state)

    def _doubtful(self, free: FreeText, state: int) -> set[int]:
        """Returns the tokens that complete a pattern and extend beyond it."""
        return {*self._index.crossing(free.triggers, state), *free.suspects}

    def known_free(self, section: int, state: int) -> bool:
        """Returns True if everything is known to be allowed at a state of a `FreeText`."""
        free = self.sections[section]
        assert isinstance(free, FreeText)
        return free.rows.get(state, self.everything) is None

    def _possible(self, section: int, state: int, token: int) -> bool:
        trial = StructuralMatcher(self, section, state)
        try:
            trial.follow(self.symbols(token))
        except MatcherError:
            return False
        return True


def _without(row: MaskRow, tokens: list[int]) -> MaskRow:
    """Returns a copy of `row` that does not allow `tokens`."""
    left = row.view(np.uint32).copy()
    refused = np.array(tokens, dtype=np.uint32)
    np.bitwise_and.at(left, refused // 32, ~(np.uint32(1) << refused % 32))
    return left.view(np.int32)


def _only(row: MaskRow, token: int) -> MaskRow:
    """A row as long as `row` that allows nothing but `token`."""
    alone = np.zeros(len(row), dtype=np.uint32)
    alone[token // 32] = np.uint32(1) << np.uint32(token % 32)
    return alone.view(np.int32)


@dataclass
class _Inside:
    """Matcher of the grammar inside a body, and the number of tokens fed to it. Fixed once the body has ended."""

    matcher: TokenMatcher
    num_fed: int = 0

    def copy(self) -> _Inside:
        return _Inside(self.matcher.copy(), self.num_fed)


class _Checkpoint(NamedTuple):
    """State for rollback, and the token taken there.

    `num_insides` bodies had begun by then, and the last one had been fed `num_fed` tokens.
    """

    token: int
    section: int
    state: int
    num_insides: int
    num_fed: int


class StructuralMatcher(Matcher):
    """Matcher of a tagged text. Where the text is free, it searches for triggers and masks nothing."""

    def __init__(self, grammar: StructuralGrammar, section: int | None = None, state: int = 0) -> None:
        self.grammar = grammar
        self._history: list[_Checkpoint] = []
        self._insides: list[_Inside] = []
        self._section = grammar.start if section is None else section
        self._state = state
        if self._body is not None:
            self._enter(self._section)

    @property
    def free(self) -> bool:
        """Every token is allowed here, no mask is needed. Where that is not known yet, it takes a mask to find out."""
        if self._body is not None or self._way_out():
            return False
        return self.grammar.known_free(self._section, self._state)

    @property
    def taken(self) -> list[int]:
        """Tokens accepted so far."""
        return [mark.token for mark in self._history]

    @property
    def accepting(self) -> bool:
        """True where the text may end."""
        if self._body is not None:
            return self._insides[-1].matcher.accepting
        return self._free_text.may_end and not self._way_out()

    @property
    def finished(self) -> bool:
        """True where nothing but the end of sequence is allowed."""
        return self._body is not None and self._insides[-1].matcher.finished

    @property
    def closed(self) -> bool:
        """True if the budget cut a body short."""
        return self._body is not None and self._insides[-1].matcher.closed

    def min_tokens(self) -> int | None:
        """Returns the number of tokens of a short text."""
        return self.grammar.min_tokens()

    def fill_mask(self, out: MaskRow) -> None:
        """Writes the tokens allowed next. Raises MatcherError at a dead end."""
        body = self._body
        if body is None:
            row = self.grammar.row(self._section, self._state)
            row = self.grammar.everything if row is None else row
            if way := self._way_out():
                row = _only(row, way[0])
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
        if (way := self._way_out()) and token != way[0]:
            raise MatcherError(f"token {token} is not allowed here")
        if self._pass_by(token):
            return token
        if token in self.grammar.tokens.eos_ids:
            if not self.accepting:
                raise MatcherError("the end of sequence is not allowed here")
            return token
        if not 0 <= token < self.grammar.tokens.vocabulary.size:
            raise MatcherError(f"token {token} is not allowed here")
        mark = self._checkpoint(token)
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

    def forced_tokens(self, patience_s: float | None = None) -> list[int]:
        """The tokens that the grammar forces next."""
        return self._insides[-1].matcher.forced_tokens(patience_s) if self._body is not None else self._way_out()

    def rollback(self, num_tokens: int) -> None:
        """Takes back the last `num_tokens` accepted tokens; ends of sequence do not count."""
        if num_tokens < 0 or num_tokens > len(self._history):
            raise MatcherError(f"cannot take back {num_tokens} of {len(self._history)} tokens")
        if num_tokens:
            mark = self._history[-num_tokens]
            del self._history[-num_tokens:]
            self._restore(mark)

    def copy(self) -> StructuralMatcher:
        """Returns an independent matcher in the same state."""
        other = StructuralMatcher.__new__(StructuralMatcher)
        other.grammar = self.grammar
        other._history = list(self._history)
        other._section, other._state = self._section, self._state
        other._insides = list(self._insides)  # those of ended bodies are shared, since they no longer change
        if self._body is not None:
            other._insides[-1] = self._insides[-1].copy()
        return other

    def follow(self, symbols: Symbols) -> None:
        """Advances by a text, regardless of the budget. After a MatcherError the state is void."""
        while symbols:
            body = self._body
            if body is None:
                free = self._free_text
                self._state, count = free.triggers.walk(self._state, symbols)
                matched = free.triggers.matched(self._state)
                if matched:
                    self._enter(free.targets[matched])
            else:
                count = self._feed(body, symbols)
            symbols = symbols[count:]

    @property
    def _body(self) -> Body | None:
        section = self.grammar.sections[self._section]
        return section if isinstance(section, Body) else None

    @property
    def _free_text(self) -> FreeText:
        section = self.grammar.sections[self._section]
        assert isinstance(section, FreeText)
        return section

    def _way_out(self) -> list[int]:
        """Returns the tokens that must come now because free text is as long as it may be; none while it is not."""
        free = self.grammar.sections[self._section]
        if isinstance(free, Body) or free.most is None or len(self._history) < free.most:
            return []
        return free.path_from(self._state, self.grammar.tokens)

    def _checkpoint(self, token: int) -> _Checkpoint:
        num_fed = self._insides[-1].num_fed if self._body is not None else 0
        return _Checkpoint(token, self._section, self._state, len(self._insides), num_fed)

    def _restore(self, mark: _Checkpoint) -> None:
        left = self._body is None or len(self._insides) != mark.num_insides
        del self._insides[mark.num_insides :]
        self._section, self._state = mark.section, mark.state
        if self._body is None:
            return
        inside = self._insides[-1].copy() if left else self._insides[-1]
        inside.matcher.rollback(inside.num_fed - mark.num_fed)
        inside.num_fed = mark.num_fed
        self._insides[-1] = inside

    def _enter(self, section: int) -> None:
        """Enters a section, and passes through it if its only word is empty."""
        self._section, self._state = section, 0
        body = self._body
        if body is not None:
            self._insides.append(_Inside(body.grammar.matcher()))
            if body.leaves_to is not None and self._insides[-1].matcher.accepting:
                self._enter(body.leaves_to)

    def _feed(self, body: Body, symbols: Symbols) -> int:
        """Advances inside a body by the fewest symbols that form a token; returns their number."""
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
        """Accepts a token of free text that may end: the common case, which needs no further checks."""
        here = self.grammar.sections[self._section]
        vocabulary = self.grammar.tokens.vocabulary
        if isinstance(here, Body) or not here.may_end or not 0 <= token < len(vocabulary.tokens):
            return False
        text = vocabulary.tokens[token]
        if not text or token in vocabulary.eos_ids:
            return False
        state, _ = here.triggers.walk(self._state, text)
        if here.triggers.matched(state):
            return False
        self._history.append(_Checkpoint(token, self._section, self._state, len(self._insides), 0))
        self._state = state
        return True

    def _accept_inside(
        self, body: Body, mark: _Checkpoint, token: int, remaining: int | None, patience_s: float | None
    ) -> int:
        taken = self._take_inside(body, token, remaining, patience_s)
        begun = len(self._insides) > mark.num_insides
        if taken in self.grammar.tokens.eos_ids or not begun or self._fits(remaining, patience_s):
            return taken
        self._restore(mark)  # the token ends this body and begins another one that would be cut off
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
        """Returns the rest of the token that completed a body."""
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

    def _accept_free(self, mark: _Checkpoint, token: int, remaining: int | None, patience_s: float | None) -> int:
        """Accepts `token`, ends the text if it begins a body that would be cut off, or takes the path to the end."""
        grammar, free = self.grammar, self._free_text
        self.follow(grammar.symbols(token))
        if self._fits(remaining, patience_s):
            return token
        self._restore(mark)
        if free.may_end:
            return min(grammar.tokens.eos_ids)
        taken = free.path_from(mark.state, grammar.tokens)[0]
        self.follow(grammar.symbols(taken))
        return taken

    def _fits(self, remaining: int | None, patience_s: float | None) -> bool:
        """Returns True if the rest of the text fits into `remaining` tokens, as far as is known."""
        if remaining is None:
            return True
        body = self._body
        if body is None:
            return self._free_text.num_needed(self.grammar.tokens, self._state) <= remaining
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
