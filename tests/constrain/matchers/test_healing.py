"""Token healing: every tokenisation of a given beginning, and no other, then the grammar or anything."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from bough.constrain import Choice, GrammarCompiler, Matcher, MatcherError, Regex, Vocabulary
from bough.constrain.compiler import compile_grammar
from bough.constrain.matchers.healing import Healer
from bough.constrain.matchers.interface import Grammar
from bough.constrain.matchers.table.tables import RegularGrammar, RegularMatcher
from bough.constrain.matchers.token_matcher import TokenMatcher
from bough.constrain.spec import GrammarSpec
from bough.constrain.vocabulary.token_table import TokenTable

Allowed = Callable[[Matcher], list[int]]

PREFIXES = (b" ", b"cou", b' "', b"the", b" va", "ü".encode(), "東".encode()[:2], b"\xe6", b"[]", b"0")


@pytest.fixture(scope="module")
def doubled(vocabulary: Vocabulary) -> Vocabulary:
    """The vocabulary with two texts under a second id each."""
    tokens = (*vocabulary.tokens, b" count", b" ", None)
    return Vocabulary(tokens=tokens, eos_ids=vocabulary.eos_ids, size=len(tokens) + 3, encode=vocabulary.encode)


@pytest.fixture(scope="module")
def table(doubled: Vocabulary) -> TokenTable:
    return TokenTable(doubled)


@pytest.fixture(scope="module")
def compiler_of_doubled(doubled: Vocabulary) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(doubled)
    yield compiler
    compiler.close()


def allowed_by(matcher: Matcher, vocabulary: Vocabulary) -> list[int]:
    mask = np.zeros((vocabulary.size + 31) // 32, dtype=np.int32)
    matcher.fill_mask(mask)
    return [int(i) for i in np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))]


def reads(grammar: Grammar | None, text: bytes, table: TokenTable) -> bool:
    """Tells whether a grammar allows a text as a beginning, taken a byte at a time."""
    if grammar is None:
        return True
    matcher = grammar.matcher()
    try:
        for byte in text:
            matcher.accept(table.spelling(bytes([byte]))[0])
    except MatcherError:
        return False
    return True


def expected(text: bytes, prefix: bytes, grammar: Grammar | None, table: TokenTable) -> list[int]:
    """Finds by brute force the tokens after which `text` agrees with the prefix and then with the grammar."""
    found = []
    for token, piece in enumerate(table.vocabulary.tokens):
        if not piece or token in table.eos_ids:
            continue
        whole = text + piece
        if prefix.startswith(whole) or (whole.startswith(prefix) and reads(grammar, whole[len(prefix) :], table)):
            found.append(token)
    return found


@pytest.mark.parametrize("prefix", PREFIXES)
def test_masks_without_a_grammar(prefix: bytes, table: TokenTable) -> None:
    rng = random.Random(0)
    for _ in range(8):
        matcher, text = Healer(table).matcher(prefix), b""
        while not matcher.over:
            assert not matcher.free
            assert not matcher.accepting
            allowed = allowed_by(matcher, table.vocabulary)
            assert allowed == expected(text, prefix, None, table)
            token = matcher.accept(rng.choice(allowed))
            text += table.text([token])
        assert text.startswith(prefix)
        assert matcher.free
        assert allowed_by(matcher, table.vocabulary) == list(range(table.vocabulary.size))


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("pattern", ["[a-z ]{0,12}", "(?s:.*)", "ntry|nt (and|or) .*", '[a-z]+"', "[0-9]{2}-[0-9]+"])
def test_masks_with_a_grammar(
    prefix: bytes, pattern: str, table: TokenTable, compiler_of_doubled: GrammarCompiler
) -> None:
    grammar = compiler_of_doubled.compile(Regex(pattern))
    rng = random.Random(1)
    for _ in range(4):
        matcher, text = Healer(table).matcher(prefix, grammar.matcher()), b""
        while not matcher.over:
            allowed = allowed_by(matcher, table.vocabulary)
            assert allowed == expected(text, prefix, grammar, table)
            text += table.text([matcher.accept(rng.choice(allowed))])
        assert reads(grammar, text[len(prefix) :], table)
        # from here on it is the grammar's own matcher
        inner = grammar.matcher()
        for byte in text[len(prefix) :]:
            inner.accept(table.spelling(bytes([byte]))[0])
        assert allowed_by(matcher, table.vocabulary) == allowed_by(inner, table.vocabulary)
        assert matcher.accepting == inner.accepting
        assert matcher.finished == inner.finished


@pytest.mark.parametrize("whole", ["country list", "value text", "the number", "Berlin", " user email"])
@pytest.mark.parametrize("make", [lambda word: Choice((word,)), lambda word: Choice((word, word + "xyz")), Regex])
def test_a_token_into_forced_text_may_spell_it_in_any_way(
    make: Callable[[str], GrammarSpec], whole: str, table: TokenTable, compiler_of_doubled: GrammarCompiler
) -> None:
    """The model's own tokens for what is forced differ from those that go on where a healed token ends."""
    for cut in range(1, len(whole) - 1):
        prefix, grammar = whole[:cut].encode(), compiler_of_doubled.compile(make(whole[cut:]))
        assert isinstance(grammar, RegularGrammar)
        first = Healer(table).matcher(prefix, grammar.matcher())
        allowed = allowed_by(first, table.vocabulary)
        assert allowed == expected(b"", prefix, grammar, table)
        for token in allowed:
            matcher = first.copy()
            assert matcher.accept(token, 100) == token
            text = table.text([token])
            while not matcher.accepting:
                text += table.text([matcher.accept(allowed_by(matcher, table.vocabulary)[0], 100)])
            assert text.decode() == whole


def test_what_was_accepted_is_taken_back(table: TokenTable, compiler_of_doubled: GrammarCompiler) -> None:
    grammar = compiler_of_doubled.compile(Regex("[a-z]+-[0-9]{2}"))
    rng = random.Random(2)
    matcher = Healer(table).matcher(b" co", grammar.matcher())
    states: list[list[int]] = []
    for _ in range(200):
        if states and (rng.random() < 0.4 or matcher.finished):
            count = rng.randint(1, len(states))
            matcher.rollback(count)
            expected_mask = states[-count]
            del states[-count:]
            assert allowed_by(matcher, table.vocabulary) == expected_mask
            continue
        allowed = allowed_by(matcher, table.vocabulary)
        other = matcher.copy()
        token = rng.choice([token for token in allowed if token not in table.eos_ids] or [0])
        matcher.accept(token)
        states.append(allowed)
        assert allowed_by(other, table.vocabulary) == allowed  # a copy stays where it is
    with pytest.raises(MatcherError):
        matcher.rollback(len(states) + 1)


def test_what_does_not_agree_is_refused(table: TokenTable, compiler_of_doubled: GrammarCompiler) -> None:
    matcher = Healer(table).matcher(b"co", compiler_of_doubled.compile(Regex("unt")).matcher())
    for token in (table.known(["a"])[0], table.known(["city"])[0], *table.eos_ids, -1, table.vocabulary.size):
        with pytest.raises(MatcherError):
            matcher.accept(token)
    crossing = table.spelling(b"country")  # the grammar does not go on like that
    for token in crossing:
        with pytest.raises(MatcherError):
            matcher.accept(token)
    matcher.accept(table.spelling(b"count")[0])
    assert matcher.over


@pytest.mark.parametrize("budget", range(4, 12))
def test_a_small_budget_still_holds_the_prefix_and_a_word(
    budget: int, table: TokenTable, compiler_of_doubled: GrammarCompiler
) -> None:
    grammar = compiler_of_doubled.compile(Regex("(nt|unt)?[0-9]{3}"))
    for seed in range(20):
        rng = random.Random(seed)
        matcher, taken = Healer(table).matcher(b"the co", grammar.matcher()), []
        for remaining in reversed(range(budget)):
            token = matcher.accept(rng.choice(allowed_by(matcher, table.vocabulary)), remaining)
            if token in table.eos_ids:
                break
            taken.append(token)
            if matcher.finished:
                break
        text = table.text(taken)
        assert text.startswith(b"the co")
        if budget >= 7:  # "the", " ", "c", "o" and a word of at most three tokens
            assert matcher.accepting, text


def test_a_prefix_must_not_be_empty(table: TokenTable) -> None:
    with pytest.raises(ValueError, match="nothing to heal"):
        Healer(table).matcher(b"")


def test_room_is_left_for_a_word_after_the_prefix(compiler: GrammarCompiler) -> None:
    """Be the constraint a table or not: what the prefix takes is not taken from the shortest word."""
    tokens = compiler.tokens
    for pattern, kind in (("[0-9]{3}", RegularMatcher), ("[0-9]{3}( [a-z]{40})?", TokenMatcher)):
        grammar = compile_grammar(Regex(pattern), tokens) if kind is TokenMatcher else compiler.compile(Regex(pattern))
        least = grammar.min_tokens()
        inner = grammar.matcher()
        assert least and isinstance(inner, kind)
        (whole,) = tokens.encode(b"the")
        first = tokens.prefix(b"t")
        assert first is not None and first != whole
        assert Healer(tokens).matcher(b"the", inner.copy()).accept(first, least + 2) == first
        assert Healer(tokens).matcher(b"the", inner.copy()).accept(first, least) == whole
