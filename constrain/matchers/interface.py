"""The seam to the sampler: a compiled `Grammar`, shared and immutable, and a `Matcher` per generation."""

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

    Errors are MatcherErrors, and only `fill_mask`, `fill_along`, `accept` and `rollback` raise them. The matcher is
    then as it was before, so that another token may be tried. A StepTooComplexError says that a step passes the limit
    of its effort. Nothing else raises, whatever came before.

    A subclass inherits what is true of most: a mask is always needed, and no table stands behind it.
    """

    @property
    def accepting(self) -> bool:
        """True where the text so far is a complete word: the end of sequence is allowed."""

    @property
    def finished(self) -> bool:
        """Nothing but the end of sequence is allowed here."""

    @property
    def taken(self) -> Sequence[int]:
        """The tokens accepted so far, ends of sequence aside. Not to be changed."""

    @property
    def free(self) -> bool:
        """Every token is allowed here, so that no mask is needed."""
        return False

    @property
    def closed(self) -> bool:
        """The budget cut the word short: what is written is JSON, but not a word of the grammar."""
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
        """A matcher that does the same from here on for callers that take nothing back; None: any text may follow."""
        return self

    def min_tokens(self) -> int | None:
        """Tokens of a short word, counted from the start; None if none was found."""

    def fill_mask(self, out: MaskRow) -> None:
        """Writes the tokens allowed next. Does not change the state. Raises MatcherError at a dead end."""

    def fill_along(self, drafts: Sequence[int], out: Int32) -> int:
        """Writes the mask before the first of `drafts` and after each of them to the rows of `out` [1 + drafts, W].

        Returns how many rows are right: fewer than there are if a draft is not allowed or nothing may follow it. The
        matcher ends where it began. The interpreter lock is released for most of the time. Raises MatcherError where
        `fill_mask` does.
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
                (None: it is waited for). The matcher is as before; who asks again without haste gets an answer.
            MatcherError: `token` is not allowed here.
        """

    def give_up(self) -> None:
        """Takes note that no way to the end fits into the budget: `accept` looks for none any more."""
        return

    def forced_tokens(self, patience_s: float | None = None) -> list[int]:
        """The tokens that the grammar forces next, in the model's own tokenisation; empty if there is a choice.

        Of a long text the first tokens alone: some `MAX_FORCED_BYTES`. Empty as well where another generation's step
        holds the grammar's lexer for longer than `patience_s` (None: it is waited for).
        """

    def rollback(self, num_tokens: int) -> None:
        """Takes back the last `num_tokens` accepted tokens; ends of sequence do not count."""

    def copy(self) -> Matcher:
        """An independent matcher in the same state."""


class Grammar(Protocol):
    """A compiled constraint. Immutable and thread-safe, shared by all requests that use it.

    It may remember what it finds out (rows, ways to the end, its table), which changes no answer.
    """

    @property
    def num_bytes(self) -> int:
        """Memory it holds, for the cache's bound."""

    @property
    def receipt(self) -> Receipt | None:
        """Keywords that its masks enforce, and those that must be checked on the finished value."""

    @property
    def tabulation(self) -> Tabulation | None:
        """The table that can be made of it; None if it is not known to be regular, or is a table."""

    def matcher(self) -> Matcher:
        """A fresh matcher at the start state."""

    def min_tokens(self) -> int | None:
        """Tokens of a short word: what a budget should allow at least. None if none was found."""


class Tabulation:
    """The table of one regular grammar, made at most once.

    job      makes its automaton
    key      under which the compiler keeps the grammar, and then the table
    table    the table to come; pending until `begin`
    """

    def __init__(self, job: Tabulate, key: bytes) -> None:
        self.job = job
        self.key = key
        self.table: Future[Grammar] = Future()

    @property
    def begun(self) -> bool:
        """Somebody makes the table, or tried to."""
        return self.table.running() or self.table.done()

    def begin(self) -> bool:
        """True for the first caller, who is then to settle `table`. Not thread-safe."""
        return not self.begun and self.table.set_running_or_notify_cancel()


class TableArrays(NamedTuple):
    """A whole table: S states and C classes of tokens, of which the last are what the end of sequence leads to and is.

    mask           the tokens allowed at each state, int32 [S, words]
    token_class    int32 [V]
    following      the state after a token of a class, -1: none, int32 [S, C]
    """

    mask: Int32
    token_class: Int32
    following: Int32


class Table(Grammar, Protocol):
    """A regular grammar whose states are numbers, of which 0 is the start."""

    @property
    def farthest(self) -> int:
        """Tokens of the shortest way to an end, from the state where that is longest."""

    @property
    def size(self) -> tuple[int, int]:
        """S and C of its arrays."""

    def arrays(self) -> TableArrays:
        """All of it, made anew. Where the text is forced, the mask allows one of the tokens that have a next state."""

    def row(self, state: int) -> MaskRow:
        """The mask of a state; not to be written to."""

    def following(self, state: int, token: int) -> int:
        """The state after `token`, be it the one that the mask allows of those that write forced text or another; -1
        if there is none."""


class TableMatcher(Protocol):
    """A matcher on a table."""

    @property
    def grammar(self) -> Table:
        """The table."""

    @property
    def state(self) -> int | None:
        """The state in it; None if the budget ran out, and another matcher closes the text."""


class GrammarState(Protocol):
    """The part of llguidance's `LLMatcher` in use. Nothing raises: after an error the state is void, and `is_error`.

    Copies share a lexer, and may lose it together: see `Lexer`.

    It remembers its last mask by the number of lexemes before it, even if that place is rolled back: what is then
    written instead, with as many lexemes, gets that mask. So no tokens may be taken back after which a mask was made:
    where masks are made ahead, they are a copy's.
    """

    def deep_copy(self) -> GrammarState:
        """An independent one."""

    def is_accepting(self) -> bool:
        """The text may end here."""

    def is_stopped(self) -> bool:
        """Nothing but the end may follow, or there was an error."""

    def is_error(self) -> bool: ...

    def get_error(self) -> str: ...

    def unsafe_compute_mask_ptr(self, trg_pointer: int, trg_byte_size: int) -> None:
        """Writes the mask of the next token to that address."""

    def validate_tokens(self, tokens: list[int]) -> int:
        """Returns how many of the tokens can be consumed one after another."""

    def consume_token(self, sampled_token: int) -> bool:
        """Advances; False is an error."""

    def try_consume_tokens(self, tokens: list[int]) -> int:
        """Advances as far as possible; returns by how many."""

    def rollback(self, num_tokens: int) -> bool:
        """Takes tokens back; False is an error."""

    def compute_ff_tokens(self) -> list[int]:
        """The tokens that are forced next."""

    def compute_ff_bytes(self) -> bytes:
        """The bytes that are forced next."""
