"""A lexer that one generation breaks is replaced for all others, and masks are as if nothing had happened."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from llguidance import LLParserLimits

from bough.constrain import GrammarCompiler, JsonSchema, Matcher, MatcherError, Regex, Vocabulary
from bough.constrain.errors import SearchLateError, StepTooComplexError
from bough.constrain.matchers import lexer
from bough.constrain.matchers.token_matcher import CompiledGrammar

Allowed = Callable[[Matcher], list[int]]

COSTLY = "((a{1,90}){1,90}){1,90}"
"""Each further letter takes more effort than the one before it."""


@pytest.fixture
def little_fuel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexer, "_LIMITS", LLParserLimits(verbose_errors=False, step_lexer_fuel=20_000))


@pytest.fixture
def compiled(vocabulary: Vocabulary, little_fuel: None) -> Iterator[Callable[[], CompiledGrammar]]:
    """Compiles the costly constraint anew each time."""
    compilers = []

    def compiled() -> CompiledGrammar:
        compilers.append(GrammarCompiler(vocabulary))
        grammar = compilers[-1].compile(Regex(COSTLY))
        assert isinstance(grammar, CompiledGrammar)
        return grammar

    yield compiled
    for compiler in compilers:
        compiler.close()


@pytest.fixture
def costly(compiled: Callable[[], CompiledGrammar]) -> CompiledGrammar:
    return compiled()


@pytest.fixture
def letter(vocabulary: Vocabulary) -> int:
    return vocabulary.tokens.index(b"a")


def num_steps(matcher: Matcher, allowed: Allowed, letter: int) -> int:
    """Letters that a generation can write before a step takes too much."""
    for count in range(200):
        try:
            allowed(matcher)
            matcher.accept(letter)
        except StepTooComplexError:
            return count
    raise AssertionError("no step takes too much")


def test_a_step_that_takes_too_much_is_no_dead_end(costly: CompiledGrammar, allowed: Allowed, letter: int) -> None:
    assert num_steps(costly.matcher(), allowed, letter) > 3
    assert StepTooComplexError.code == "grammar_too_complex" != MatcherError.code


def test_too_many_ways_to_go_on_are_no_dead_end(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexer, "_LIMITS", LLParserLimits(verbose_errors=False, max_items_in_row=20))
    compiler = GrammarCompiler(vocabulary)
    keys = {f"k{index}": {"type": "integer"} for index in range(30)}
    matcher = compiler.compile(JsonSchema(json.dumps({"type": "object", "properties": keys}))).matcher()
    with pytest.raises(StepTooComplexError, match="too many continuations"):
        matcher.accept(vocabulary.tokens.index(b"{"))
    compiler.close()


def test_others_go_on(costly: CompiledGrammar, allowed: Allowed, letter: int) -> None:
    alone = costly.matcher()
    masks = []
    for _ in range(4):
        masks.append(allowed(alone))
        alone.accept(letter)
    before, half = costly.matcher(), costly.matcher()
    half.accept(letter)
    for _ in range(3):  # each breaks the lexer that the others have moved to
        num_steps(costly.matcher(), allowed, letter)
        for matcher in (before, costly.matcher()):
            seen = []
            for _ in range(4):
                seen.append(allowed(matcher))
                matcher.accept(letter)
            assert seen == masks
            matcher.rollback(4)
        assert allowed(half) == masks[1]
        copied = half.copy()
        copied.accept(letter)
        assert allowed(copied) == masks[2]


def test_a_draft_that_breaks_it_costs_only_drafts(
    compiled: Callable[[], CompiledGrammar], allowed: Allowed, letter: int, vocabulary: Vocabulary
) -> None:
    count = num_steps(compiled().matcher(), allowed, letter)
    grammar = compiled()
    matcher = grammar.matcher()
    expected = allowed(matcher)
    drafts = [letter] * (count + 2)
    rows = np.zeros((1 + len(drafts), (vocabulary.size + 31) // 32), np.int32)
    assert 1 <= matcher.fill_along(drafts, rows) <= count + 1
    assert [int(i) for i in np.flatnonzero(np.unpackbits(rows[0].view(np.uint8), bitorder="little"))] == expected
    for _ in range(count):
        assert allowed(matcher)
        matcher.accept(letter)
    assert grammar.matcher().fill_along([letter], rows) == 1  # none is followed any more


def test_what_is_in_haste_does_not_wait_for_a_new_one(costly: CompiledGrammar, allowed: Allowed, letter: int) -> None:
    matcher = costly.matcher()
    matcher.accept(letter)
    matcher._lexer.failed = True
    with pytest.raises(SearchLateError):
        matcher.accept(letter, 50, 0.002)
    assert matcher.forced_tokens() == []
    assert matcher.accept(letter, 50) == letter
    assert list(matcher.taken) == [letter] * 2


def test_what_is_in_haste_does_not_wait_for_the_steps_of_others(costly: CompiledGrammar, letter: int) -> None:
    matcher = costly.matcher()
    with matcher._lexer.lock:
        assert matcher.forced_tokens(0.0) == []
        with pytest.raises(SearchLateError):
            matcher.accept(letter, None, 0.0)
    assert matcher.accept(letter, None, 0.0) == letter


def test_what_is_in_haste_does_not_follow_a_long_way_to_the_end(vocabulary: Vocabulary) -> None:
    """Each token near the end of a budget took as long as to follow the whole way, beside all other generations."""
    compiler = GrammarCompiler(vocabulary)
    schema = {"type": "array", "items": {"type": "string"}, "minItems": 400}
    matcher = compiler.compile(JsonSchema(json.dumps(schema))).matcher()
    way = matcher.min_tokens()
    assert way is not None and way > 400
    matcher.accept(vocabulary.tokens.index(b"["), way + 40, 1.0)
    quote = vocabulary.tokens.index(b'"')
    with pytest.raises(SearchLateError):
        matcher.accept(quote, way + 39, 1e-6)
    assert len(matcher.taken) == 1
    assert matcher.accept(quote, way + 39, 1.0) == quote
    compiler.close()


def test_others_take_steps_while_a_text_is_followed_anew(
    costly: CompiledGrammar, allowed: Allowed, letter: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the tokens of a long text the new lexer's lock is free; who finds it broken there takes another one."""
    matcher, expected = costly.matcher(), costly.matcher()
    for _ in range(3):
        matcher.accept(letter)
        expected.accept(letter)
    masks = allowed(expected)
    matcher._lexer.failed = True
    renewed = lexer.Lexer.renewed
    made: list[lexer.Lexer] = []

    class Watched:
        """A lock that counts how often it is taken; the first lexer breaks while the second token is followed."""

        def __init__(self, of: lexer.Lexer) -> None:
            self.count, self._of, self._lock = 0, of, threading.Lock()

        def __enter__(self) -> None:
            self._lock.acquire()
            self.count += 1
            self._of.failed |= self._of is made[0] and self.count == 2

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    def watched(of: lexer.Lexer) -> lexer.Lexer:
        fresh = renewed(of)
        made.append(fresh)
        fresh.lock = Watched(fresh)  # type: ignore[assignment]
        return fresh

    monkeypatch.setattr(lexer.Lexer, "renewed", watched)
    assert allowed(matcher) == masks
    assert [one.lock.count for one in made] == [2, 4]  # type: ignore[attr-defined]  # the last is the mask's own


def test_a_search_that_breaks_it_is_not_made_again(
    costly: CompiledGrammar, allowed: Allowed, letter: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def breaking(*arguments: object) -> None:
        calls.append(arguments)
        raise StepTooComplexError("too much")

    monkeypatch.setattr(costly.completer, "search", breaking)
    matcher, other = costly.matcher(), costly.matcher()
    expected = allowed(other)
    assert [matcher.search(8), other.search(8), other.search(5)] == [None] * 3
    assert len(calls) == 1
    assert allowed(matcher) == allowed(other) == expected
    assert matcher.accept(letter, 1) == letter


def test_threads_that_break_it_for_each_other(costly: CompiledGrammar, allowed: Allowed, letter: int) -> None:
    alone = costly.matcher()
    expected = []
    for _ in range(3):
        expected.append(allowed(alone))
        alone.accept(letter)
    harmed: list[object] = []

    def quiet() -> None:
        for _ in range(20):
            matcher = costly.matcher()
            try:
                for mask in expected:
                    if (seen := allowed(matcher)) != mask:
                        harmed.append(seen)
                    matcher.accept(letter)
            except MatcherError as error:
                harmed.append(error)

    threads = [threading.Thread(target=quiet) for _ in range(2)]
    threads += [threading.Thread(target=num_steps, args=(costly.matcher(), allowed, letter)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert harmed == []


def test_unlike_elements(vocabulary: Vocabulary, little_fuel: None, allowed: Allowed) -> None:
    compiler = GrammarCompiler(vocabulary)
    items = '{"type": "string", "pattern": "^([ab]{1,90}c?){1,90}$"}'
    schema = f'{{"type": "array", "uniqueItems": true, "items": {items}}}'
    grammar = compiler.compile(JsonSchema(schema))
    assert isinstance(grammar, CompiledGrammar)
    opening, letter = (vocabulary.tokens.index(text) for text in (b"[", b"a"))
    before = grammar.matcher()
    expected = allowed(before)
    broken = grammar.matcher()
    broken.accept(opening)
    broken.accept(vocabulary.tokens.index(b'"'))
    assert num_steps(broken, allowed, letter) > 3
    assert allowed(grammar.matcher()) == allowed(before) == expected
    compiler.close()
