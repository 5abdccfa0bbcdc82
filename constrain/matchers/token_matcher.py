"""Compiled grammars and their matchers over llguidance, which keep enough budget to complete each word."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from ctypes import addressof, c_char
from functools import cached_property

import numpy as np
from llguidance import LLMatcher

from ..errors import BusyMachineError, CompileLateError, MatcherError, SearchLateError, StepTooComplexError
from ..json_text.reader import READER, START, Scan, closing
from ..lowered import Lowered
from ..receipt import Receipt
from ..vocabulary.token_table import MAX_FORCED_BYTES, TokenTable
from ..vocabulary.vocabulary import MaskRow
from .completion import Completer
from .effort import Effort
from .interface import Grammar, GrammarState, Int32, Matcher, Tabulation
from .lexer import Lexer, has_too_many_items, is_broken

MAX_WITNESS_TOKENS = 4_096
MAX_RESPELLED = 8
FOLLOW_S, ENCODE_S = 1e-6, 5e-7
"""Measured times to follow a token of a way to the end, and to encode a byte."""
MAX_LEXERS = 8
"""Most lexers tried for one step, since other matchers may break them. A matcher that breaks one gets its own."""
_TOO_COMPLEX = "the constraint takes more work to follow than one step may use: make its repetitions shorter"
_WHITESPACE = b" \t\n\r"


class CompiledGrammar:
    """A `Grammar` that is followed step by step.

    `lexer` is that of the start state of the grammar in `lowered`. If it fails it is replaced, once for all matchers,
    and drafts are no longer followed, so that the new one learns only sampled text.
    """

    def __init__(
        self,
        lexer: Lexer,
        tokens: TokenTable,
        completer: Completer,
        lowered: Lowered,
        *,
        receipt: Receipt | None = None,
        tabulation: Tabulation | None = None,
    ) -> None:
        self.tokens = tokens
        self.json = lowered.json
        self.ambiguous = lowered.ambiguous
        self.num_bytes = 200_000 + 64 * len(lowered.source)  # measured: 0.1 MB for half of schemas, 3 MB for 1 in 100
        self.num_bytes += receipt.num_bytes if receipt is not None else 0
        self.receipt = receipt
        self.tabulation = tabulation
        self.completer = completer
        self.witness: list[int] | None = None
        try:
            self.witness = completer.witness(lexer.start, lowered.witness, MAX_WITNESS_TOKENS)
        except StepTooComplexError:
            lexer.failed = True
        except BusyMachineError as error:
            raise CompileLateError(str(error)) from error
        shortest = len(self.witness) if self.witness is not None else 0
        self.guarded_tokens = 32 + 2 * shortest + min(lowered.growth, MAX_WITNESS_TOKENS)
        self.fragile = lexer.failed
        self._lexer = lexer.renewed() if lexer.failed else lexer
        self._lock = threading.Lock()

    def matcher(self) -> TokenMatcher:
        """Returns a new matcher at the start state."""
        return TokenMatcher(self, self._lexer)

    def sound_lexer(self) -> Lexer:
        """Returns a lexer that has not failed. Creating a new one takes as long as compiling the grammar."""
        with self._lock:
            if self._lexer.failed:
                self.fragile = True
                self._lexer = self._lexer.renewed()
            return self._lexer

    def min_tokens(self) -> int | None:
        """Number of tokens of a short word, which a budget should allow; None if none was found."""
        return None if self.witness is None else len(self.witness)

    @cached_property
    def missing_value(self) -> bytes:
        """Returns a placeholder of few tokens for a missing value."""
        return b"null" if self.tokens.known(["null"]) else b"0"


class TokenMatcher(Matcher):
    """Matcher over llguidance's.

    Far from the end of the budget a token is only checked and accepted. Near it (`guarded_tokens`) the matcher keeps a
    witness: tokens that complete the word from here. A token after which no witness fits into the remaining budget is
    replaced by the first token of the last witness. If no witness fits (the budget was too small from the start), a
    JSON text is at least closed: it parses, though it cannot satisfy its schema.
    """

    def __init__(self, grammar: CompiledGrammar, lexer: Lexer, state: GrammarState | None = None) -> None:
        self.grammar = grammar
        self.state = lexer.start.deep_copy() if state is None else state
        self._lexer = lexer
        self._alone = False  # it broke a lexer, and now has its own
        self._taken: list[int] = []
        self._effort = Effort() if grammar.ambiguous else None
        self._masked_at = 0  # how many tokens were taken when the state last made a mask
        self._witness: list[int] | None = grammar.witness
        self._witness_at = 0  # number of tokens taken when it was found
        self._next_search = math.inf  # after a failed search: the budget at which to search again
        self._scan: Scan = START
        self._scanned = 0  # number of taken tokens that it has read
        self._closing: list[int] | None = None  # the tokens that are left to close the text
        self._num_closed = 0

    @property
    def accepting(self) -> bool:
        """True where the text so far is a complete word, or a JSON text that has been closed."""
        return not self._closing if self._closing is not None else bool(self.state.is_accepting())

    @property
    def finished(self) -> bool:
        """True where nothing but the end of sequence is allowed."""
        return not self._closing if self._closing is not None else bool(self.state.is_stopped())

    @property
    def taken(self) -> Sequence[int]:
        """Tokens accepted so far. Must not be changed."""
        return self._taken

    @property
    def closed(self) -> bool:
        """True if the budget cut the word short: its text is JSON, but not a word of the grammar."""
        return self._closing is not None

    @property
    def tabulable(self) -> Grammar | None:
        """The grammar, if a table of it could take over from here."""
        return None if self.closed or self.grammar.tabulation is None else self.grammar

    def min_tokens(self) -> int | None:
        """Returns the number of tokens of a short word from the start; None if none was found."""
        return self.grammar.min_tokens()

    def fill_mask(self, out: MaskRow) -> None:
        """Writes the tokens allowed next. Raises MatcherError at a dead end."""
        tokens = self.grammar.tokens
        if self._closing is not None:
            out[:] = tokens.single(self._closing[0]) if self._closing else tokens.end()
            return
        if out.nbytes != 4 * tokens.num_words or not out.flags.c_contiguous:
            raise MatcherError(f"a mask row must be {tokens.num_words} contiguous int32 words, got {out.shape}")
        address = addressof(c_char.from_buffer(out.data))  # faster than `out.ctypes`
        for _ in range(MAX_LEXERS):
            self._ensure_lexer()
            with self._lexer.lock:
                forced = self._long_forced_text()
                if not forced:
                    self.state.unsafe_compute_mask_ptr(address, out.nbytes)
                failed = self._lexer.notices_failure(self.state)
            self._masked_at = len(self._taken)
            if not failed:
                if forced:
                    out[:] = tokens.single(tokens.encode_beginning(forced)[0])
                self.check(out)
                return
        raise StepTooComplexError(_TOO_COMPLEX)

    def fill_along(self, drafts: Sequence[int], out: Int32) -> int:
        """Writes the masks before and after each of `drafts`; returns the number of valid ones. See `Matcher`."""
        if self.grammar.fragile or self._lexer.failed:
            drafts = ()
        if not drafts or self.closed or not isinstance(self.state, LLMatcher):
            return super().fill_along(drafts, out)
        with self._lexer.lock:
            is_long = bool(self._long_forced_text())
        if is_long:
            return super().fill_along(drafts, out)
        # Fills all rows in one call without the interpreter lock, on a copy: see `GrammarState`.
        state, tokens = self.state.deep_copy(), list(drafts)
        with self._lexer.lock:
            state.unsafe_compute_mask_ptr_with_draft_token(out.ctypes.data, out.strides[0], tokens)  # type: ignore[attr-defined]
            if self._lexer.notices_failure(state) or state.is_error():  # perhaps because of a draft
                tokens = []
            num_allowed = state.validate_tokens(tokens)
        if not tokens:
            return super().fill_along((), out)
        empty = np.flatnonzero(~out[: 1 + num_allowed].any(axis=1))
        num_right = int(empty[0]) if empty.size else 1 + num_allowed
        return num_right or super().fill_along((), out)  # which raises the reason

    def check(self, row: MaskRow) -> None:
        """Raises MatcherError if `row`, just filled, shows that the generation cannot go on."""
        if self._closing is not None:
            return
        if self.state.is_error():
            raise self._error()
        if not np.count_nonzero(row) or (self.state.is_stopped() and not self.state.is_accepting()):
            raise MatcherError("the grammar allows no token here")

    def accept(self, token: int, remaining: int | None = None, patience_s: float | None = None) -> int:
        """Advances by `token`, or by one that leaves a way to the end within `remaining`, and returns the one taken."""
        if self._closing is not None:
            return self._accept_closing(token)
        if token in self.grammar.tokens.eos_ids:
            if not self.state.is_accepting():
                raise MatcherError("the end of sequence is not allowed here")
            return token
        for _ in range(MAX_LEXERS):
            self._ensure_lexer(patience_s)
            num_taken = len(self._taken)
            try:
                if remaining is None or remaining >= self.grammar.guarded_tokens:
                    self._take(token, patience_s)
                    return token
                return self._accept_guarded(token, remaining, patience_s)
            except MatcherError:
                if not self._lexer.failed:
                    raise
                del self._taken[num_taken:]
        raise StepTooComplexError(_TOO_COMPLEX)

    def expect(self, witness: list[int]) -> None:
        """Records tokens that complete the word from here."""
        self._keep(witness)

    def search(self, max_tokens: int, patience_s: float | None = None) -> list[int] | None:
        """Finds at most `max_tokens` tokens that complete the word. Raises SearchLateError after `patience_s`."""
        try:
            return self.grammar.completer.find(self._taken, self.state, max_tokens, patience_s)
        except StepTooComplexError:
            self._lexer.failed = True
            self._ensure_lexer(patience_s)
            self.give_up()
            return None

    def give_up(self) -> None:
        """Records that there is no way to the end within the budget, so that no search is made any more."""
        self._witness, self._next_search = None, -math.inf

    def forced_tokens(self, patience_s: float | None = None) -> list[int]:
        """Returns the tokens that the grammar forces next."""
        if self._closing is not None:
            return list(self._closing)
        if not self._holds_lexer(patience_s):
            return []
        try:
            if self._lexer.failed or self.state.is_stopped():
                return []
            text = self._long_forced_text()
            forced = [] if text else list(self.state.compute_ff_tokens())
            if self._lexer.notices_failure(self.state):
                return []
        finally:
            self._lexer.lock.release()
        return self.grammar.tokens.encode_beginning(text) if text else forced

    def rollback(self, num_tokens: int) -> None:
        """Takes back the last `num_tokens` accepted tokens; ends of sequence do not count."""
        if num_tokens < 0 or num_tokens > len(self._taken):
            raise MatcherError(f"cannot take back {num_tokens} of {len(self._taken)} tokens")
        if num_tokens == 0:
            return
        num_closed = min(num_tokens, self._num_closed)
        num_state = num_tokens - num_closed
        kept = len(self._taken) - num_tokens
        if num_state and not self._roll_back(num_state, kept):
            raise MatcherError(f"cannot take back {num_tokens} tokens")
        if num_state == 0:  # the text is still being closed
            self._closing = self._taken[kept:] + (self._closing or [])
            self._num_closed -= num_closed
        else:
            self._closing, self._num_closed = None, 0
        del self._taken[kept:]
        if self._scanned > kept:
            self._scan, self._scanned = START, 0
        if self._witness_at > kept:
            self._next_search = math.inf
            self._witness = self.grammar.witness if not self._taken else None
            self._witness_at = kept

    def copy(self) -> TokenMatcher:
        """Returns an independent matcher in the same state."""
        other = TokenMatcher(self.grammar, self._lexer, self.state.deep_copy())
        other._alone, other._taken, other._masked_at = self._alone, list(self._taken), self._masked_at
        other._effort = self._effort.copy() if self._effort is not None else None
        other._witness, other._witness_at, other._next_search = self._witness, self._witness_at, self._next_search
        other._scan, other._scanned = self._scan, self._scanned
        other._closing = list(self._closing) if self._closing is not None else None
        other._num_closed = self._num_closed
        return other

    def _take(self, token: int, patience_s: float | None = None) -> None:
        if not self._holds_lexer(patience_s):
            raise SearchLateError("another generation's step takes longer")
        try:
            if not 0 <= token < len(self.grammar.tokens.vocabulary.tokens):
                raise self._not_allowed(token)
            if self._effort is None:
                self._consume(token)
                return
            self._effort.weigh(self.state, self.grammar.tokens.spell(token), patience_s)
            began = time.thread_time()
            self._consume(token)
            self._effort.add(time.thread_time() - began)
        finally:
            self._lexer.lock.release()

    def _consume(self, token: int) -> None:
        if not self.state.validate_tokens([token]):  # consuming an invalid one would void the state
            raise self._not_allowed(token)
        if not self.state.consume_token(token):
            raise self._error()
        self._taken.append(token)

    def _not_allowed(self, token: int) -> MatcherError:
        return MatcherError(f"token {token} is not allowed here")

    def _long_forced_text(self) -> bytes:
        """Returns the forced text if it is too long to let the lexer tokenise it, else an empty one. The caller must
        hold the lexer's lock."""
        text = b"" if self.state.is_stopped() else self.state.compute_ff_bytes()
        return text if len(text) > MAX_FORCED_BYTES else b""

    def _holds_lexer(self, patience_s: float | None) -> bool:
        """Takes the lexer's lock; returns False if another generation keeps it for longer than `patience_s`."""
        return self._lexer.lock.acquire(timeout=-1 if patience_s is None else min(patience_s, threading.TIMEOUT_MAX))

    def _error(self) -> MatcherError:
        """Returns the error of a void state."""
        if self._lexer.notices_failure(self.state):
            return StepTooComplexError(_TOO_COMPLEX)
        if has_too_many_items(self.state):
            return StepTooComplexError("the constraint has too many continuations at one place: make it narrower")
        return MatcherError(f"the grammar cannot be followed: {_first_line(self.state.get_error())}")

    def _ensure_lexer(self, patience_s: float | None = None) -> None:
        """Moves to another lexer if this one has failed; with `patience_s`, raises SearchLateError instead."""
        if not self._lexer.failed:
            return
        if patience_s is not None:
            raise SearchLateError("the constraint's lexer is made anew")
        for _ in range(MAX_LEXERS):
            if is_broken(self.state):
                if self._alone:
                    break
                self._alone = True
            self._lexer = self._lexer.renewed() if self._alone else self.grammar.sound_lexer()
            self.state, self._masked_at = self._replayed(self._lexer), len(self._taken)
            if not self._lexer.failed:
                return
        raise StepTooComplexError(_TOO_COMPLEX)

    def _replayed(self, lexer: Lexer) -> GrammarState:
        """Returns a state of `lexer` after the tokens taken; a void one if it fails, or another generation breaks it.

        Holds the lock for one token at a time, so that others can take their steps in between.
        """
        state = lexer.start.deep_copy()
        mask = np.empty(self.grammar.tokens.num_words, np.int32)
        for token in self._taken:
            with lexer.lock:
                state.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)  # each mask grants the effort of a step
                followed = state.try_consume_tokens([token]) == 1
                if lexer.notices_failure(state):
                    return state
            if not followed:
                raise StepTooComplexError(_TOO_COMPLEX)
        return state

    def _accept_guarded(self, token: int, remaining: int, patience_s: float | None) -> int:
        before = self._known_witness(remaining, patience_s)
        if before is None:
            return self._accept_lost(token, remaining, patience_s)
        if before and token == before[0] and len(before) - 1 <= remaining:
            self._take(token, patience_s)
            self._keep(before[1:])
            return token
        self._take(token, patience_s)
        try:
            after = self._witness_after(before, remaining, patience_s)
        except SearchLateError:
            self._undo()
            self._keep(before)
            raise
        if after is not None:
            self._keep(after)
            return token
        if len(before) > remaining + 1:
            self._undo()
            self._witness, self._next_search = None, remaining // 2
            return self._accept_lost(token, remaining, patience_s)
        self._undo()
        if not before:
            return min(self.grammar.tokens.eos_ids)
        self._take(before[0], patience_s)
        self._keep(before[1:])
        return before[0]

    def _known_witness(self, remaining: int, patience_s: float | None) -> list[int] | None:
        """Returns a witness for the current state that fits; searches only a few times if there seems to be none."""
        if self._witness is not None and self._witness_at == len(self._taken):
            return self._witness
        if remaining > self._next_search:
            return None
        self._witness = self.search(remaining + 1, patience_s)
        self._witness_at = len(self._taken)
        self._next_search = math.inf if self._witness is not None else remaining // 2
        return self._witness

    def _witness_after(self, before: list[int], remaining: int, patience_s: float | None) -> list[int] | None:
        """Returns a witness of at most `remaining` tokens after a token that was not the witness's."""
        completer = self.grammar.completer
        ends = math.inf if patience_s is None else time.monotonic() + patience_s
        for way in self._likely_ways(before):
            if len(way) <= remaining:
                if time.monotonic() + FOLLOW_S * len(way) > ends:
                    raise SearchLateError("to follow a way to the end takes longer")
                if completer.completes(self.state, way):
                    return way
        return self.search(remaining, None if patience_s is None else max(ends - time.monotonic(), 0.0))

    def _likely_ways(self, before: list[int]) -> Iterator[list[int]]:
        """Yields likely completions after the last token, given that `before` completed the word before it. They spare
        a search, which takes much longer."""
        yield before  # the token was content; what follows it is as before
        yield before[1:]
        texts = self.grammar.tokens.vocabulary.tokens
        written = (texts[self._taken[-1]] or b"").translate(None, _WHITESPACE)
        for index, token in enumerate(before[:MAX_RESPELLED]):  # the same text in other tokens and other whitespace
            text = texts[token] or b""
            solid = text.translate(None, _WHITESPACE)
            if len(written) < len(solid):
                if solid.startswith(written):
                    rest = text.lstrip(_WHITESPACE)[len(written) :]
                    yield self.grammar.tokens.encode(rest) + before[index + 1 :]
                break
            if not written.startswith(solid):
                break
            written = written[len(solid) :]
            if not written:
                yield before[index + 1 :]
        yield before[2:]  # another value of an enumeration
        yield before[3:]

    def _keep(self, witness: list[int]) -> None:
        self._witness, self._witness_at = witness, len(self._taken)

    def _roll_back(self, num_tokens: int, kept: int) -> bool:
        """Takes back tokens of the state, so that `kept` are left; replaces it if it computed a mask after those."""
        if self._lexer.failed:
            return True  # the state is void, and replaced when needed
        if self._masked_at <= kept:
            return self.state.rollback(num_tokens)
        self.state, self._masked_at = self._lexer.start.deep_copy(), 0
        return self.state.try_consume_tokens(self._taken[:kept]) == kept

    def _undo(self) -> None:
        self.state.rollback(1)
        self._taken.pop()

    def _accept_lost(self, token: int, remaining: int, patience_s: float | None) -> int:
        """Accepts `token` if the text can be closed as JSON afterwards, else begins to close it."""
        if not self.grammar.json:
            self._take(token, patience_s)
            return token
        tokens = self.grammar.tokens
        missing, tail = self.grammar.missing_value, self._taken[-3:]
        self._scan = READER.feed(self._scan, tokens.text(self._taken[self._scanned :]))
        self._scanned = len(self._taken)
        after = READER.feed(self._scan, tokens.text([token]))
        end = closing(after, tokens.text([*tail, token]), missing)
        if patience_s is not None and ENCODE_S * len(end) > patience_s:
            raise SearchLateError("to encode what closes the text takes longer")
        if len(tokens.encode(end)) <= remaining:
            self._take(token, patience_s)
            self._scan, self._scanned = after, len(self._taken)
            return token
        self._closing = tokens.encode(closing(self._scan, tokens.text(tail), missing))
        return self._accept_closing(self._closing[0] if self._closing else min(tokens.eos_ids))

    def _accept_closing(self, token: int) -> int:
        """Returns the next token of the closing, whatever `token` is."""
        if not self._closing:
            return min(self.grammar.tokens.eos_ids) if token not in self.grammar.tokens.eos_ids else token
        taken = self._closing.pop(0)
        self._taken.append(taken)
        self._num_closed += 1
        return taken


def _first_line(message: str) -> str:
    return message.partition("\n")[0]
