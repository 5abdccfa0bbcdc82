"""Bounds the work of following an ambiguous grammar, of which a parser keeps every derivation.

In the worst case a byte takes work that grows with the square of the text before it (Earley, "An efficient context-free
parsing algorithm", 1970), and llguidance keeps the interpreter's lock meanwhile. So a long token is tried on a copy of
the state first, byte by byte, and a grammar whose tokens have become slow is given up.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..errors import SearchLateError, StepTooComplexError
from .interface import GrammarState

TAKE_S = 0.01
"""Processor time that a token may take; tokens of grammars in use take some microseconds."""
SHORT_TOKEN = 8
"""Bytes of a token that is taken without a trial: between two of them, the work grows little."""


class Effort:
    """Processor time of the tokens that a matcher has taken; whoever copies the matcher copies it."""

    def __init__(self, last_s: tuple[float, float] = (0.0, 0.0)) -> None:
        self.last_s = last_s

    def add(self, seconds: float) -> None:
        """Notes that a token took `seconds`."""
        self.last_s = self.last_s[1], seconds

    def copy(self) -> Effort:
        return Effort(self.last_s)

    def weigh(self, state: GrammarState, spelled: Sequence[int], patience_s: float | None) -> None:
        """Raises an error if the next token takes too long after `state`, which is left as it is.

        `spelled` are the tokens of its single bytes.

        Raises:
            SearchLateError: it takes, or is likely to take, longer than `patience_s`.
            StepTooComplexError: it takes longer than TAKE_S, as the last two did.
        """
        if min(self.last_s) > TAKE_S:
            raise _too_ambiguous()
        if patience_s is not None and self.last_s[1] > patience_s:
            raise _late()
        if len(spelled) <= SHORT_TOKEN:
            return
        for is_last in (False, True):  # the first time, a lexer may have much to learn
            spent_s = _trial(state, spelled, TAKE_S if patience_s is None else min(patience_s / 2, TAKE_S))
            if spent_s is None:
                return
            if patience_s is not None and 2 * spent_s > patience_s:  # it is to be checked and taken
                raise _late()
            if is_last:
                raise _too_ambiguous()


def _trial(state: GrammarState, spelled: Sequence[int], most_s: float) -> float | None:
    """Takes tokens one by one on a copy of `state`; returns the time spent once it is more than `most_s`, else None."""
    trial, began = state.deep_copy(), time.thread_time()
    for token in spelled:
        if trial.try_consume_tokens([token]) == 0:
            return None  # it is not allowed, which is seen when it is taken
        if (spent_s := time.thread_time() - began) > most_s:
            return spent_s
    return None


def _late() -> SearchLateError:
    return SearchLateError("the next token of an ambiguous grammar takes longer")


def _too_ambiguous() -> StepTooComplexError:
    reason = "the grammar is so ambiguous that each token takes longer than the last: give each text one derivation"
    return StepTooComplexError(f'{reason}, as in `s: "-"+` in place of `s: s s | "-"`')
