"""Lexers of grammars: shared by all copies of a start state, and lost to all of them at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock

from llguidance import LLMatcher, LLParserLimits

from ..vocabulary.token_table import TokenTable
from .interface import GrammarState

STEP_FUEL = 2_000_000
"""Limit of effort for one step, on a thread that blocks no other: about 50 ms, of which a usual step takes 1 %."""

_LIMITS = LLParserLimits(verbose_errors=False, step_lexer_fuel=STEP_FUEL)

_ITEMS = re.compile(r"Current row has \d+ items|Too many items")


def start_state(tokens: TokenTable, source: str) -> GrammarState:
    """Returns the start state of the llguidance grammar `source`; it `is_error` if that is refused."""
    state: GrammarState = LLMatcher(tokens.tokenizer, source, log_level=0, limits=_LIMITS)
    return state


@dataclass(eq=False, slots=True)
class Lexer:
    """Lexer of a start state and its copies, which share its learnt states.

    A step that exceeds its limits breaks the lexer for good: from then on the masks of all copies lack tokens, mostly
    without an error. So the first to see the error records it here, and every user of a copy checks here; both hold
    `lock`. (The native lexer has its own lock, too.)

    start    start state, which is only copied
    make     returns a start state with a new lexer
    """

    start: GrammarState
    make: Callable[[], GrammarState]
    failed: bool = False
    lock: Lock = field(default_factory=Lock)

    def notices_failure(self, state: GrammarState) -> bool:
        """Returns True if `state`, a copy, is void because the lexer has failed, and records the failure."""
        self.failed |= is_broken(state)
        return self.failed

    def renewed(self) -> Lexer:
        """Returns a new lexer of the same grammar."""
        return Lexer(self.make(), self.make)


def is_broken(state: GrammarState) -> bool:
    """Returns True if `state` is void because its lexer has exceeded a limit."""
    return state.is_error() and state.get_error().startswith("lexer error")


def has_too_many_items(state: GrammarState) -> bool:
    """Returns True if `state` is void because a parser row or a step has too many items."""
    return state.is_error() and _ITEMS.search(state.get_error()) is not None
