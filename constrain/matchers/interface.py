"""The seam to the sampler: a compiled `Grammar`, shared and immutable, and a `Matcher` per generation."""

from __future__ import annotations

from typing import Protocol

from ..receipt import Receipt
from ..vocabulary.vocabulary import MaskRow


class Matcher(Protocol):
    """Where one generation stands in its grammar. Not thread-safe; `fill_mask` releases the interpreter lock."""

    @property
    def accepting(self) -> bool:
        """What was generated so far is a complete word: the end of sequence is allowed here."""

    @property
    def finished(self) -> bool:
        """Nothing but the end of sequence is allowed here."""

    @property
    def free(self) -> bool:
        """Every token is allowed here, so that no mask is needed."""

    def fill_mask(self, out: MaskRow) -> None:
        """Writes the tokens allowed next. Does not change the state. Raises MatcherError at a dead end."""

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

    def forced_tokens(self) -> list[int]:
        """The tokens that the grammar forces next, in the model's own tokenisation; empty if there is a choice."""

    def rollback(self, num_tokens: int) -> None:
        """Takes back the last `num_tokens` accepted tokens."""

    def copy(self) -> Matcher:
        """An independent matcher in the same state."""


class Grammar(Protocol):
    """A compiled constraint. Immutable, shared by all requests that use it."""

    num_bytes: int
    """Memory it holds, for the cache's bound."""

    receipt: Receipt | None
    """What its masks enforce, and what must be checked on the finished value."""

    def matcher(self) -> Matcher:
        """A fresh matcher at the start state."""

    def min_tokens(self) -> int | None:
        """Tokens of a short word: what a budget should allow at least. None if none was found."""
