"""The search for a way to the end: not in haste where it is slow, once for all, and the same answers in the end."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from bough.constrain import GrammarCompiler, JsonSchema, Matcher, Regex, Structural, Tag, Vocabulary
from bough.constrain.errors import BusyMachineError, CompileLateError, SearchLateError
from bough.constrain.matchers.completion import Completer
from bough.constrain.matchers.healing import Healer
from bough.constrain.matchers.interface import GrammarState
from bough.constrain.matchers.table.tables import RegularMatcher
from bough.constrain.matchers.token_matcher import CompiledGrammar, TokenMatcher
from bough.constrain.spec import GrammarSpec

Allowed = Callable[[Matcher], list[int]]

WORDS = Regex(r"(\w+ ){3,30}\w+[.]")
SPECS: list[GrammarSpec] = [
    WORDS,
    Regex(r"[^\n]{1,400}\n"),
    Regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2} .{3,9}"),
    JsonSchema(
        '{"type":"object","properties":{"id":{"type":"string","pattern":"^[a-f]{8}-[0-9]{3}"}},"required":["id"]}'
    ),
    JsonSchema('{"type":"array","items":{"type":"string","minLength":3},"minItems":2}'),
    Structural(tags=(Tag(begin="<a>", content=Regex("[a-z]{2,40}![0-9]{3}"), end="</a>"),), free_text=False),
]

RECORD = JsonSchema(
    '{"type":"object","properties":{"name":{"type":"string","maxLength":9},"note":{"type":"string","maxLength":20},'
    '"kind":{"enum":["alpha","beta"]},"old":{"type":"boolean"}},"required":["name","note","kind","old"],'
    '"additionalProperties":false}'
)


def generate(
    matcher: Matcher,
    accept: Callable[[Matcher, int, int], tuple[Matcher, int]],
    allowed: Allowed,
    budget: int,
    seed: int,
) -> list[int]:
    """The tokens taken when each is drawn evenly from those allowed."""
    rng, taken = random.Random(seed), []
    for remaining in reversed(range(budget)):
        if matcher.finished:
            break
        matcher, token = accept(matcher, rng.choice(allowed(matcher)), remaining)
        taken.append(token)
    return taken


def patient(matcher: Matcher, token: int, remaining: int) -> tuple[Matcher, int]:
    return matcher, matcher.accept(token, remaining)


@pytest.mark.parametrize("healed", [False, True])
@pytest.mark.parametrize("spec", SPECS, ids=range(len(SPECS)))
def test_haste_changes_no_answer(spec: GrammarSpec, healed: bool, compiler: GrammarCompiler, allowed: Allowed) -> None:
    grammar = compiler.compile(spec)
    healer = Healer(compiler.tokens)
    late = 0

    def hasty(matcher: Matcher, token: int, remaining: int) -> tuple[Matcher, int]:
        nonlocal late
        before = allowed(matcher)
        try:
            return matcher, matcher.accept(token, remaining, 0.0)
        except SearchLateError:
            late += 1
        assert allowed(matcher) == before, "it is not as it was"
        following = matcher.copy()
        taken = following.accept(token, remaining)
        assert allowed(matcher) == before
        return following, taken

    for seed in range(3):
        for budget in (3, 14, 30):
            ends = []
            for accept in (patient, hasty):
                matcher = healer.after(b"x" if healed else b"", grammar.matcher())
                assert matcher is not None
                ends.append(generate(matcher, accept, allowed, budget, seed))
            assert ends[0] == ends[1]
    assert late or isinstance(grammar.matcher(), RegularMatcher)


def test_what_is_known_to_be_slow_is_not_begun_in_haste(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar = compiler.compile(JsonSchema('{"type":"array","items":{"type":"string","minLength":5},"minItems":4}'))
    assert isinstance(grammar, CompiledGrammar)
    matcher = grammar.matcher()
    num_searches = 0
    search = Completer.search

    def slow(
        self: Completer, state: GrammarState, max_tokens: int, patience_s: float | None = None
    ) -> list[int] | None:
        nonlocal num_searches
        num_searches += 1
        if patience_s is not None:
            raise SearchLateError("it takes longer")
        time.sleep(0.01)
        return search(self, state, max_tokens)

    monkeypatch.setattr(Completer, "search", slow)
    for _ in range(3):
        with pytest.raises(SearchLateError):
            matcher.search(50, 1.0)
    assert num_searches == 1
    found = matcher.search(50)
    assert found is not None and num_searches == 2


def test_one_thread_searches_for_all(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    grammar = compiler.compile(JsonSchema('{"type":"array","items":{"type":"string","minLength":4},"minItems":3}'))
    assert isinstance(grammar, CompiledGrammar)
    num_searches = 0
    search = Completer.search

    def counted(
        self: Completer, state: GrammarState, max_tokens: int, patience_s: float | None = None
    ) -> list[int] | None:
        nonlocal num_searches
        num_searches += 1
        time.sleep(0.02)
        return search(self, state, max_tokens, patience_s)

    monkeypatch.setattr(Completer, "search", counted)
    found: list[list[int] | None] = []
    threads = [threading.Thread(target=lambda: found.append(grammar.matcher().search(100))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert num_searches == 1 and found[0] and found == [found[0]] * 6
    assert grammar.matcher().search(len(found[0]) - 1) != found[0]  # that is a question of its own
    assert num_searches == 2
    assert grammar.matcher().search(len(found[0]) + 5) == found[0] and num_searches == 2


def test_a_regular_constraint_gets_its_table(
    vocabulary: Vocabulary, allowed: Allowed, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = GrammarCompiler(vocabulary)
    grammar = compiler.compile(Regex("[a-c]{20,40}[0-9]{3}x"))
    matcher = grammar.matcher()
    assert isinstance(matcher, TokenMatcher), "it is small: this tests nothing"
    token = compiler.tokens.encode(b"a")[0]
    monkeypatch.setattr(Completer, "search", lambda *_: pytest.fail("it searches"))
    monkeypatch.setattr("bough.constrain.compiler.TABLE_PATIENCE_S", 60.0)
    following, taken = compiler.foresee(matcher, token, 60)
    assert isinstance(following, RegularMatcher) and taken == token and not matcher.taken
    again, taken = compiler.foresee(following, token, 5)
    assert taken == token and again is not following  # too little is left for any word: it goes on all the same
    compiler.close()


def test_a_table_knows_that_the_budget_is_too_small(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    grammar = compiler.compile(JsonSchema('{"type":"string","pattern":"^[ab]{10}$"}'))
    matcher = grammar.matcher()
    assert isinstance(matcher, RegularMatcher)
    monkeypatch.setattr(Completer, "search", lambda *_: pytest.fail("it searches"))
    taken = []
    token = compiler.tokens.encode(b'"')[0]
    for remaining in reversed(range(5)):
        taken.append(matcher.accept(token, remaining))
        token = compiler.tokens.encode(b"a")[0]
        if matcher.finished:
            break
    assert isinstance(json.loads(compiler.tokens.text(taken)), str) and matcher.closed


@pytest.mark.parametrize(
    "text",
    [
        '{"name":"red","note":"a, \\"b\\"","kind":"beta","old":true}',
        '{"name": "red", "note": "", "kind": "alpha", "old": false}',
        '{"name":"the", "note": "x","kind": "beta","old": false}',
    ],
)
def test_the_way_that_is_known_is_followed_in_other_tokens_and_spaces(
    text: str, compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar = compiler.submit(RECORD).result()
    assert isinstance(grammar, CompiledGrammar)
    searched: list[int] = []
    search = Completer.search

    def counted(completer: Completer, state: GrammarState, max_tokens: int, patience_s: float | None = None) -> Any:
        searched.append(max_tokens)
        return search(completer, state, max_tokens, patience_s)

    monkeypatch.setattr(Completer, "search", counted)
    matcher, tokens = grammar.matcher(), grammar.tokens.encode(text.encode())
    for token in tokens:
        assert matcher.accept(token, grammar.guarded_tokens - 40) == token
        assert matcher._witness is not None
        assert grammar.completer.completes(matcher.state, matcher._witness)
    assert len(searched) < 3


REQUIRED = JsonSchema(
    json.dumps(
        {
            "type": "object",
            "properties": {f"k{number}": {"type": "string", "minLength": 3} for number in range(20)},
            "required": [f"k{number}" for number in range(20)],
        }
    )
)


def test_a_busy_machine_passes_no_verdict(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that was given no processor time in all its time is late, which says nothing of the word."""
    compiler = GrammarCompiler(vocabulary)
    grammar = compiler.compile(REQUIRED)
    assert isinstance(grammar, CompiledGrammar)
    completer, start = grammar.completer, grammar.sound_lexer().start
    with monkeypatch.context() as busy:
        busy.setattr("bough.constrain.matchers.completion.MOST_SEARCH_S", 0.0)
        with pytest.raises(BusyMachineError):
            completer.find([1], start.deep_copy(), 4096, None)
        busy.setattr(Completer, "completes", lambda *_: False)
        with pytest.raises(CompileLateError):
            compiler.compile(JsonSchema(REQUIRED.schema.replace("k1", "l1")))
    assert completer.find([1], start.deep_copy(), 4096, None)
    compiler.close()


def test_a_search_has_a_budget_of_processor_time(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = GrammarCompiler(vocabulary)
    grammar = compiler.compile(REQUIRED)
    assert isinstance(grammar, CompiledGrammar)
    start = grammar.sound_lexer().start
    monkeypatch.setattr("bough.constrain.matchers.completion.SEARCH_TIME_S", 0.0)
    assert grammar.completer.find([1], start.deep_copy(), 4096, None) is None
    monkeypatch.undo()
    assert grammar.completer.find([1], start.deep_copy(), 4096, None) is None  # it is remembered
    assert grammar.completer.find([2], start.deep_copy(), 4096, None)
    compiler.close()


def test_what_is_kept_of_ways_is_bounded(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bough.constrain.matchers.completion.MAX_KNOWN_TOKENS", 1_000)
    compiler = GrammarCompiler(vocabulary)
    grammar = compiler.compile(REQUIRED)
    assert isinstance(grammar, CompiledGrammar)
    monkeypatch.setattr(Completer, "search", lambda *_: [7])
    for length in (*range(100), 5_000, *range(30)):
        assert grammar.completer.find([0] * length, grammar.sound_lexer().start, 10, None) == [7]
        kept = sum(map(len, grammar.completer._ways))
        assert kept <= 1_000 and kept == grammar.completer._num_way_tokens
    compiler.close()
