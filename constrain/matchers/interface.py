"""Interface to the sampler: a compiled `Grammar`, shared and immutable, and a `Matcher` per generation."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import MatcherError
from ..lowered import Tabulate
from ..receipt import Receipt
from ..vocabulary.vocabulary import MaskRow

Int32 = npt.NDArray[np.int32]


class Matcher(Protocol):
    """Position of one generation in its grammar. Not thread-safe; `fill_mask` releases the interpreter lock.

    Only `fill_mask`, `fill_along`, `accept` and `rollback` raise, and only MatcherErrors. The matcher is then
    unchanged, so that another token may be tried. StepTooComplexError means that a step exceeds its limit of effort.
    No other method raises, whatever came before.

    The defaults hold for most subclasses: a mask is always needed, and there is no table.
    """

    @property
    def accepting(self) -> bool:
        """True where the text so far is a complete word: the end of sequence is allowed."""

    @property
    def finished(self) -> bool:
        """True where nothing but the end of sequence is allowed."""

    @property
    def taken(self) -> Sequence[int]:
        """Tokens accepted so far, without ends of sequence. Must not be changed."""

    @property
    def free(self) -> bool:
        """True where every token is allowed, so that no mask is needed."""
        return False

    @property
    def closed(self) -> bool:
        """True if the budget cut the word short: the text is JSON, but not a word of the grammar."""
        return False

    @property
    def on_table(self) -> TableMatcher | None:
        """The matcher itself if its state is a number in a table, which a device may follow."""
        return None

    @property
    def tabulable(self) -> Grammar | None:
        """The grammar, if a table of it could take over from here."""
        return None

    @property
    def successor(self) -> Matcher | None:
        """Matcher that is equivalent from here on for callers that never roll back; None: any text may follow."""
        return self

    def min_tokens(self) -> int | None:
        """Returns the number of tokens of a short word from the start; None if none was found."""

    def fill_mask(self, out: MaskRow) -> None:
        """Writes the tokens allowed next. Does not change the state. Raises MatcherError at a dead end."""

    def fill_along(self, drafts: Sequence[int], out: Int32) -> int:
        """Writes the mask before the first of `drafts` and after each of them to the rows of `out` [1 + drafts, W].

        Returns the number of valid rows: fewer than there are if a draft is not allowed or nothing may follow it. The
        state does not change. Releases the interpreter lock most of the time. Raises MatcherError where `fill_mask`
        does.
        """
        self.fill_mask(out[0])
        right = 1
        try:
            trial = self.copy() if drafts else self
            for draft in drafts:
                trial.accept(draft)
                trial.fill_mask(out[right])
                right += 1
        except MatcherError:
            pass  # the caller sees it in the count
        return right

    def accept(self, token: int, remaining: int | None = None, patience_s: float | None = None) -> int:
        """Advances by `token` and returns the token taken.

        `remaining` is how many further tokens may be generated after this one (None: no limit). When `token` would
        leave no known way to complete the word within them, the first token of a completion that fits is taken
        instead, so that a generation that runs out of budget still ends as a whole word. If no completion fits, a
        JSON text is closed so that it parses; the matcher is then `finished`. The end of sequence may be returned.

        Raises:
            SearchLateError: near the end of the budget, when finding a way to the end takes longer than `patience_s`
                (None: no limit). The matcher is unchanged; a later call with more patience gets an answer.
            MatcherError: `token` is not allowed here.
        """

    def give_up(self) -> None:
        """Records that no way to the end fits into the budget, so that `accept` searches no more."""
        return

    def forced_tokens(self, patience_s: float | None = None) -> list[int]:
        """Returns the tokens that the grammar forces next, in the model's own tokenisation; empty if there is a choice.

        Of a long text, returns only the first tokens, about `MAX_FORCED_BYTES`. Empty as well if another generation's
        step holds the grammar's lexer for longer than `patience_s` (None: no limit).
        """

    def rollback(self, num_tokens: int) -> None:
        """Takes back the last `num_tokens` accepted tokens; ends of sequence do not count."""

    def copy(self) -> Matcher:
        """Returns an independent matcher in the same state."""


class Grammar(Protocol):
    """A compiled constraint. Immutable and thread-safe, shared by all requests that use it.

    It may cache what it computes (rows, ways to the end, its table), which changes no result.
    """

    @property
    def num_bytes(self) -> int:
        """Memory that it holds, for the limit of the cache."""

    @property
    def receipt(self) -> Receipt | None:
        """Receipt of the keywords that its masks enforce, and of those to check on the finished value."""

    @property
    def tabulation(self) -> Tabulation | None:
        """Table that can be built from it; None if it is not known to be regular, or is a table."""

    def matcher(self) -> Matcher:
        """Returns a new matcher at the start state."""

    def min_tokens(self) -> int | None:
        """Returns the number of tokens of a short word, which a budget should allow; None if none was found."""


class Tabulation:
    """The table of one regular grammar, built at most once.

    job      job that builds its automaton
    key      key under which the compiler keeps the grammar, and then the table
    table    future of the table; pending until `begin`
    """

    def __init__(self, job: Tabulate, key: bytes) -> None:
        self.job = job
        self.key = key
        self.table: Future[Grammar] = Future()

    @property
    def begun(self) -> bool:
        """True once someone has begun to build the table."""
        return self.table.running() or self.table.done()

    def begin(self) -> bool:
        """Returns True for the first caller, who must then settle `table`. Not thread-safe."""
        return not self.begun and self.table.set_running_or_notify_cancel()


class TableArrays(NamedTuple):
    """A whole table: S states, C classes of tokens. The last class is the end of sequence, the last state follows it.

    mask           tokens allowed at each state, int32 [S, words]
    token_class    class of each token, int32 [V]
    following      state after a token of a class, -1: none, int32 [S, C]
    """

    mask: Int32
    token_class: Int32
    following: Int32


class Table(Grammar, Protocol):
    """A regular grammar whose states are numbers; state 0 is the start."""

    @property
    def farthest(self) -> int:
        """Largest distance of a state from an end: tokens of the shortest way there."""

    @property
    def size(self) -> tuple[int, int]:
        """Sizes S and C of its arrays."""

    def arrays(self) -> TableArrays:
        """Builds the arrays. Where text is forced, the mask allows one of the tokens that have a next state."""

    def row(self, state: int) -> MaskRow:
        """Returns the mask of a state; it must not be written to."""

    def following(self, state: int, token: int) -> int:
        """Returns the state after `token`, or -1 if there is none. Where text is forced, also follows other tokens that
        write it than the one that the mask allows."""


class TableMatcher(Protocol):
    """Matcher on a table."""

    @property
    def grammar(self) -> Table:
        """Table of the matcher."""

    @property
    def state(self) -> int | None:
        """State in the table; None if the budget ran out and another matcher closes the text."""


class GrammarState(Protocol):
    """The part of llguidance's `LLMatcher` in use. No method raises: after an error the state is void, and `is_error`.

    Copies share a lexer, and may lose it together: see `Lexer`.

    The last mask is cached by the number of lexemes before it, even if that place is rolled back: other text with as
    many lexemes then gets the same mask. So tokens must never be rolled back once a mask was computed after them, and
    masks are computed ahead on a copy.
    """

    def deep_copy(self) -> GrammarState:
        """Returns an independent copy."""

    def is_accepting(self) -> bool:
        """Returns True if the text may end here."""

    def is_stopped(self) -> bool:
        """Returns True if nothing but the end may follow, or after an error."""

    def is_error(self) -> bool: ...

    def get_error(self) -> str: ...

    def unsafe_compute_mask_ptr(self, trg_pointer: int, trg_byte_size: int) -> None:
        """Writes the mask of the next token to the address."""

    def validate_tokens(self, tokens: list[int]) -> int:
        """Returns the number of tokens that can be consumed one after another."""

    def consume_token(self, sampled_token: int) -> bool:
        """Advances by a token; returns False on an error."""

    def try_consume_tokens(self, tokens: list[int]) -> int:
        """Advances by as many tokens as possible; returns their number."""

    def rollback(self, num_tokens: int) -> bool:
        """Takes tokens back; returns False on an error."""

    def compute_ff_tokens(self) -> list[int]:
        """Returns the tokens that are forced next."""

    def compute_ff_bytes(self) -> bytes:
        """Returns the bytes that are forced next."""
