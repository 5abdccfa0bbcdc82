"""An ambiguous grammar is given up before a token of it takes long; others are followed as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bough.constrain import GrammarCompiler, Lark, Regex, Structural, Tag, Vocabulary
from bough.constrain.errors import SearchLateError, StepTooComplexError
from bough.constrain.matchers.effort import SHORT_TOKEN, TAKE_S, Effort
from bough.constrain.matchers.interface import GrammarState
from bough.constrain.spec import GrammarSpec

AMBIGUOUS = "start: s\ns: s s | s s s | X\nX: /-/"
PLAIN = "start: x+\nx: X\nX: /-/"
LONG = b"-" * 64


class State:
    """A state whose clock goes on by `seconds` with each token."""

    def __init__(self, clock: list[float], seconds: float, allowed: int = 10**6) -> None:
        self.clock, self.seconds, self.allowed = clock, seconds, allowed

    def deep_copy(self) -> State:
        return State(self.clock, self.seconds, self.allowed)

    def try_consume_tokens(self, tokens: Sequence[int]) -> int:
        self.clock[0] += self.seconds
        self.allowed -= 1
        return int(self.allowed >= 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("bough.constrain.matchers.effort.time", SimpleNamespace(thread_time=lambda: now[0]))
    return now


def weigh(effort: Effort, state: State, num_bytes: int = 64, patience_s: float | None = None) -> None:
    effort.weigh(cast("GrammarState", state), range(num_bytes), patience_s)


def test_a_slow_token_is_not_taken(clock: list[float]) -> None:
    weigh(Effort(), State(clock, TAKE_S / 100))
    with pytest.raises(StepTooComplexError, match="ambiguous"):
        weigh(Effort(), State(clock, TAKE_S / 10))
    assert clock[0] < 3.5 * TAKE_S, "it goes on once it has been found to be slow"
    weigh(Effort(), State(clock, TAKE_S / 10, allowed=5))  # the others are no tokens of the grammar
    weigh(Effort(), State(clock, TAKE_S), SHORT_TOKEN)


def test_who_has_no_patience_is_told_at_once(clock: list[float]) -> None:
    with pytest.raises(SearchLateError):
        weigh(Effort(), State(clock, 0.001), patience_s=0.004)
    assert clock[0] <= 0.004
    weigh(Effort(), State(clock, 0.00001), patience_s=0.004)


def test_tokens_that_have_become_slow_are_the_last(clock: list[float]) -> None:
    effort = Effort()
    effort.add(2 * TAKE_S)  # as the first may be
    with pytest.raises(SearchLateError):
        weigh(effort, State(clock, 0.0), 1, patience_s=TAKE_S)
    weigh(effort, State(clock, 0.0), 1)
    copy = effort.copy()
    effort.add(2 * TAKE_S)
    with pytest.raises(StepTooComplexError):
        weigh(effort, State(clock, 0.0), 1)
    weigh(copy, State(clock, 0.0), 1)


@pytest.fixture
def compiler(vocabulary: Vocabulary, greedy: Callable[..., Any]) -> Any:
    """A compiler with tokens of many dashes."""
    tokens = (*vocabulary.tokens, LONG)
    compiler = GrammarCompiler(
        Vocabulary(tokens=tokens, eos_ids=vocabulary.eos_ids, size=len(tokens), encode=greedy(tokens))
    )
    yield compiler
    compiler.close()


def tagged(grammar: str) -> Structural:
    return Structural(tags=(Tag(begin="", content=Lark(grammar), end="!"),), free_text=False)


@pytest.mark.parametrize("spec", [Lark(AMBIGUOUS), tagged(AMBIGUOUS)], ids=["lark", "in a tag"])
def test_an_ambiguous_grammar_is_given_up(spec: GrammarSpec, compiler: GrammarCompiler) -> None:
    matcher, (token,) = compiler.compile(spec).matcher(), compiler.tokens.encode(LONG)

    def follow() -> None:
        for _ in range(20):
            matcher.accept(token)

    with pytest.raises(StepTooComplexError, match="ambiguous"):
        follow()
    assert len(matcher.taken) < 10


@pytest.mark.parametrize("spec", [Lark(PLAIN), tagged(PLAIN), Regex("-+")], ids=["lark", "in a tag", "regex"])
def test_others_are_followed(spec: GrammarSpec, compiler: GrammarCompiler) -> None:
    matcher, (token,) = compiler.compile(spec).matcher(), compiler.tokens.encode(LONG)
    for _ in range(50):
        assert matcher.accept(token) == token
