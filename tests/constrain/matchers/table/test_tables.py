"""Regular constraints are tables at once, or when they come again; until then, and where that fails, nothing is new."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from bough.constrain import Choice, Grammar, GrammarCompiler, Lark, Matcher, MatcherError, Regex, Vocabulary
from bough.constrain.lower import lower
from bough.constrain.lowered import Tabulate
from bough.constrain.matchers.table import tables as table_module
from bough.constrain.matchers.table.tables import RegularGrammar, RegularTables, is_small_pattern, tabulate
from bough.constrain.matchers.token_matcher import CompiledGrammar
from bough.constrain.regex.automaton import Conjunction, compile_regular
from bough.constrain.spec import GrammarSpec

X = (Conjunction(("x",)),)


@pytest.fixture(scope="module")
def compiler(vocabulary: Vocabulary) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(vocabulary)
    yield compiler
    compiler.close()


def wait_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20.0
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


@pytest.mark.parametrize(
    "spec", [Regex("^[a-z]{3,60}-[0-9]{2}$"), Choice(tuple(f"number {i}" for i in range(500)))], ids=["regex", "choice"]
)
def test_what_comes_again_becomes_a_table(compiler: GrammarCompiler, spec: GrammarSpec) -> None:
    before = compiler.compiled
    first = compiler.compile(spec)
    assert isinstance(first, CompiledGrammar) and first.tabulation is not None and not first.tabulation.begun
    assert wait_for(lambda: compiler.compiled == before + 1)  # it is counted after it is given
    compiled = compiler.compiled
    second = compiler.compile(spec)
    assert second is first or isinstance(second, RegularGrammar)
    assert first.tabulation.begun and not first.tabulation.begin(), "it has begun, and will not begin again"
    assert wait_for(lambda: isinstance(compiler.compile(spec), RegularGrammar))
    table = compiler.compile(spec)
    assert table is compiler.compile(spec) and isinstance(table, RegularGrammar)
    assert table.plain is first and table.receipt == first.receipt
    assert compiler.compiled == compiled
    assert compiler.cached_bytes >= table.num_bytes > first.num_bytes


def test_what_makes_too_large_a_table_is_followed_step_by_step(compiler: GrammarCompiler) -> None:
    spec = Regex("(a|b)*a(a|b){14}")
    first = compiler.compile(spec)
    for _ in range(3):
        assert compiler.compile(spec) is first
    assert isinstance(first, CompiledGrammar) and first.tabulation is not None and first.tabulation.begun
    other = Regex("[a-z]{30}-[0-9]{3}")
    compiler.compile(other)
    assert wait_for(lambda: isinstance(compiler.compile(other), RegularGrammar)), "the workers go on"
    assert compiler.compile(spec) is first


def test_what_is_not_regular_stays_as_it_is(compiler: GrammarCompiler) -> None:
    spec = Lark('start: "(" start? ")"')
    first: Grammar = compiler.compile(spec)
    assert isinstance(first, CompiledGrammar) and first.tabulation is None
    assert compiler.compile(spec) is first


def test_jobs() -> None:
    assert lower(Choice(("a", "b"))).table == Tabulate(words=("a", "b"))
    assert lower(Regex("x")).table == Tabulate(parts=X)
    assert lower(Lark('start: "x"')).table is None
    assert (
        tabulate(Tabulate(words=("a", "b")))
        == tabulate(Tabulate(parts=(Conjunction(("[ab]",)),)))
        == compile_regular("a|b")
    )


def test_one_vocabulary_has_one_trie(compiler: GrammarCompiler) -> None:
    tables = RegularTables(compiler.tokens)
    plain = compiler.compile(Regex("[^q]{30}"))
    assert isinstance(plain, CompiledGrammar)
    made = [tables.grammar(compile_regular(pattern), plain) for pattern in ("q+", "q{2}")]
    assert [grammar.min_tokens() for grammar in made] == [1, 2]


@pytest.mark.parametrize(
    ("pattern", "small"),
    [
        ("[0-9]{3}-[a-c]{2,8}", True),
        ("(red|green|blue)", True),
        ("[a-z]+", True),
        ("(?:ab)*c?", True),
        ("[a-z]{2,40}", False),
        ("(a|b)*a(a|b){13}", False),
        ("((a{9}){9}){9}", True),
        ("((a{9}){9}){99}", False),
        ("([a-d]{6}x)", True),
        ("[a-d]{16}", False),
        ("(first thing|second thing|third thing)", True),
        ("(?i)(first thing|second thing|third thing)", False),
        (r"\w+", False),
        ("[^a]", False),
        (".", False),
        ("(?i:a)", False),
        ("é", True),
        (r"caf(?:\x{e9}|\\u00e9)", True),
        ("[éè]", False),
        (r"\x{110000}", False),
        ("[[a]]", False),
        ("(", False),
        ("(" * 200 + ")" * 50, False),
    ],
)
def test_small_patterns(pattern: str, small: bool) -> None:
    assert is_small_pattern(pattern) == small


@pytest.mark.parametrize("spec", [Regex("^[a-c]{2}-[0-9]$"), Choice(("red", "green", "gre"))], ids=["regex", "choice"])
def test_what_is_small_is_a_table_at_once(compiler: GrammarCompiler, spec: GrammarSpec) -> None:
    """Answers must not depend on how often their constraint was asked for."""
    table = compiler.compile(spec)
    assert isinstance(table, RegularGrammar) and compiler.compile(spec) is table


def test_forced_text_may_be_accepted_in_other_tokens_than_the_mask_allows(
    compiler: GrammarCompiler, vocabulary: Vocabulary
) -> None:
    grammar = compiler.compile(Choice(("Paris",)))
    assert isinstance(grammar, RegularGrammar)
    ids = {text: token for token, text in enumerate(vocabulary.tokens)}
    matcher = grammar.matcher()
    assert matcher.forced_tokens() == [ids[b"Paris"]]
    for byte in b"Paris":
        assert not matcher.accepting
        with pytest.raises(MatcherError, match="not allowed"):
            matcher.accept(ids[b"x"])
        matcher.accept(ids[bytes([byte])])
    assert matcher.finished
    matcher.rollback(5)
    matcher.accept(ids[b"Paris"])
    assert matcher.finished
    for token in (-1, vocabulary.size, len(vocabulary.tokens)):
        assert grammar.following(0, token) == -1


@pytest.mark.parametrize(
    "spec", [Regex("^[a-c]{2,4}-[0-9]$"), Choice(("red", "green", "gre"))], ids=["regex", "choice"]
)
def test_masks_along_drafts_are_those_of_copies(
    compiler: GrammarCompiler, vocabulary: Vocabulary, spec: GrammarSpec
) -> None:
    rng, matcher = random.Random(0), compiler.compile(spec).matcher()
    texts, most = b"aaabbbccc-00redgreen", 0
    shape = 6, (vocabulary.size + 31) // 32
    for _ in range(300):
        drafts = [vocabulary.encode(chr(rng.choice(texts)))[0] for _ in range(5)]
        rows, expected = np.full(shape, 7, np.int32), np.full(shape, 7, np.int32)
        right = matcher.fill_along(drafts, rows)
        assert right == Matcher.fill_along(matcher, drafts, expected)
        assert (rows == expected).all() and list(matcher.taken) == []
        most = max(most, right)
    assert most > 2


def test_what_is_kept_of_a_table_has_a_bound(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forced text is as long as the text at each of its states; what is forgotten is found again."""
    word = "".join("qxzjkv"[index * index % 6] for index in range(60))
    grammar = compiler.compile(Choice((word,)))
    assert isinstance(grammar, RegularGrammar) and isinstance(grammar.plain, CompiledGrammar)
    found = [list(grammar.forced(state)) for state in range(grammar.moves.num_states)]
    assert sum(map(len, found)) > 1000
    monkeypatch.setattr(table_module, "MAX_FORCED", 100)
    fresh = RegularTables(compiler.tokens).grammar(compile_regular(word), grammar.plain)
    for _ in range(2):
        assert [list(fresh.forced(state)) for state in range(fresh.moves.num_states)] == found
        assert sum(map(len, fresh._forced.of.values())) <= 100
    assert fresh.num_bytes < grammar.num_bytes
