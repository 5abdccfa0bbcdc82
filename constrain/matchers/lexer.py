"""The lexer of a grammar: shared by all that is copied from one start state, and lost to all of them at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock

from llguidance import LLMatcher, LLParserLimits

from ..vocabulary.token_table import TokenTable
from .interface import GrammarState

STEP_FUEL = 2_000_000
"""Effort of one step, on a thread that holds nobody up: some 50 ms, of which a usual step takes 1 %."""

_LIMITS = LLParserLimits(verbose_errors=False, step_lexer_fuel=STEP_FUEL)

_ITEMS = re.compile(r"Current row has \d+ items|Too many items")


def start_state(tokens: TokenTable, source: str) -> GrammarState:
    """The start state of what llguidance is told in `source`; `is_error` if it refuses that."""
    state: GrammarState = LLMatcher(tokens.tokenizer, source, log_level=0, limits=_LIMITS)
    return state


@dataclass(eq=False, slots=True)
class Lexer:
    """The lexer of a start state and of its copies, which share what it has learnt.

    One step that passes its limits breaks it for good: every copy's masks lack tokens from then on, mostly without an
    error. So whoever meets the error notes it here, and whoever uses a copy looks here, before another one can: they
    hold `lock`. (Natively there is one, too.)

    start    only copied
    make     returns a start state with a lexer that knows nothing yet
    """

    start: GrammarState
    make: Callable[[], GrammarState]
    failed: bool = False
    lock: Lock = field(default_factory=Lock)

    def notices_failure(self, state: GrammarState) -> bool:
        """Returns whether `state`, a copy, is void because the lexer has failed, and takes note of it."""
        self.failed |= is_broken(state)
        return self.failed

    def renewed(self) -> Lexer:
        """The same lexer before it had learnt anything."""
        return Lexer(self.make(), self.make)


def is_broken(state: GrammarState) -> bool:
    """Returns whether `state` is void since its lexer has passed a limit."""
    return state.is_error() and state.get_error().startswith("lexer error")


def has_too_many_items(state: GrammarState) -> bool:
    """Returns whether `state` is void since there are more ways to go on than a row of the parser, or a step, holds."""
    return state.is_error() and _ITEMS.search(state.get_error()) is not None
