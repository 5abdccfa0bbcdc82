"""Automata of regular expressions, and their tables over tokens, against Python's `re` and the grammar compiler."""

from __future__ import annotations

import itertools
import random
import re

import numpy as np
import pytest

from bough.constrain import Choice, Grammar, GrammarError, GrammarTooComplexError, MatcherError, Regex, Vocabulary
from bough.constrain.compiler import compile_grammar
from bough.constrain.matchers.table.tables import FAR, RegularGrammar, TokenMoves, token_moves
from bough.constrain.regex.automaton import Automaton, compile_regular, compile_words
from bough.constrain.vocabulary.token_table import Level, TokenTable, build_trie

WORDS = ["".join(letters) for length in range(6) for letters in itertools.product("abc", repeat=length)]
PATTERNS = (
    "[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "(red|green|blue|blueish)",
    "[a-z]{3,40}",
    '"[^"]*"',
    r"\w+ü?",
    "(Paris|Berlin) and (city|country)[0-9]*",
    "[^x]{0,3}",
    "(?i:yes|no)",
    "é{2,5}",
)


@pytest.fixture(scope="module")
def tokens(vocabulary: Vocabulary) -> TokenTable:
    return TokenTable(vocabulary)


@pytest.fixture(scope="module")
def trie(vocabulary: Vocabulary) -> tuple[Level, ...]:
    return build_trie(vocabulary.tokens, vocabulary.eos_ids)


def make(pattern: str, tokens: TokenTable, trie: tuple[Level, ...]) -> RegularGrammar:
    automaton = compile_regular(pattern)
    moves = token_moves(automaton, trie, tokens.vocabulary.size)
    return RegularGrammar(automaton, moves, tokens, plain=compile_grammar(Regex(pattern), tokens))


def run(automaton: Automaton, text: bytes) -> int:
    """The state after `text`, -1 if there is none."""
    classes, following, _ = automaton.tables()
    state = 0
    for byte in text:
        state = int(following[state, classes[byte]]) if state >= 0 else -1
    return state


def matches(automaton: Automaton, text: bytes) -> bool:
    state = run(automaton, text)
    return state >= 0 and bool(automaton.tables()[2][state])


def random_pattern(rng: random.Random, depth: int = 3) -> str:
    match rng.randrange(8) if depth else rng.randrange(3):
        case 0 | 1:
            return rng.choice("abc")
        case 2:
            return rng.choice(["[ab]", "[^a]", "ab", "(?:)"])
        case 3 | 4:
            return random_pattern(rng, depth - 1) + random_pattern(rng, depth - 1)
        case 5 | 6:
            return f"(?:{random_pattern(rng, depth - 1)}|{random_pattern(rng, depth - 1)})"
    repeat = rng.choice(["*", "+", "?", "{0,2}", "{2}", "*?", "??", "{1,3}?"])
    return f"(?:{random_pattern(rng, depth - 1)}){repeat}"


def test_random_patterns_match_what_python_matches() -> None:
    rng = random.Random(0)
    for _ in range(150):
        pattern = random_pattern(rng)
        automaton, expected = compile_regular(pattern), re.compile(pattern)
        for word in rng.sample(WORDS, 60):
            assert matches(automaton, word.encode()) == bool(expected.fullmatch(word)), (pattern, word)


def test_automata_are_minimal() -> None:
    """Compares all pairs of states: no two allow the same texts. The minimiser splits blocks instead."""
    rng = random.Random(1)
    for _ in range(40):
        _, following, ends = compile_regular(random_pattern(rng)).tables()
        size = len(ends)
        differ = ends[:, None] != ends[None, :]
        for _ in range(size):
            padded = np.pad(differ, (0, 1), constant_values=True)
            padded[size, size] = False
            differ = differ | padded[following[:, None, :], following[None, :, :]].any(axis=2)
        assert differ.sum() == size * (size - 1)


def test_words_are_what_their_alternation_is() -> None:
    words = ["red", "green", "gre", "blue", "blueish", "rot", "grün"]
    assert compile_words(word.encode() for word in words) == compile_regular("|".join(words))


@pytest.mark.parametrize("pattern", ["a)|(b", "(", "a(?=b)", "[", "a{3", "(?-u:\\xff)"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarError, match="cannot be compiled"):
        compile_regular(pattern)


def test_what_matches_nothing_is_refused() -> None:
    with pytest.raises(GrammarError):
        compile_regular("a[^\\s\\S]")
    with pytest.raises(GrammarError, match="nothing"):
        compile_words([])


def test_too_many_states_are_refused() -> None:
    with pytest.raises(GrammarTooComplexError):
        compile_regular("(a|b)*a(a|b){13}")
    with pytest.raises(GrammarTooComplexError):
        compile_words(f"{index * 7919 % 100_003:x}{index}".encode() for index in range(20_000))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_moves_are_the_automaton_token_by_token(
    pattern: str, vocabulary: Vocabulary, tokens: TokenTable, trie: tuple[Level, ...]
) -> None:
    automaton = compile_regular(pattern)
    classes, following, ends = automaton.tables()
    moves = token_moves(automaton, trie, vocabulary.size)
    expected = np.full((automaton.num_states, vocabulary.size), -1)
    for token, text in enumerate(vocabulary.tokens):
        if text and token not in vocabulary.eos_ids:
            for state in range(automaton.num_states):
                at = state
                for byte in text:
                    at = int(following[at, classes[byte]]) if at >= 0 else -1
                expected[state, token] = at
    token_class, dense = moves.dense(vocabulary.eos_ids)
    found = dense[:-1, token_class]
    for token in vocabulary.eos_ids:
        assert (found[:, token] == np.where(ends, automaton.num_states, -1)).all()
        found[:, token] = -1
    assert (found == expected).all()
    assert (dense[-1] == -1).all()
    assert (moves.distance == distances(expected, ends)).all()
    for state in range(automaton.num_states):
        row = moves.row(state, vocabulary.eos_ids, tokens.num_words)
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")[: vocabulary.size].astype(bool)
        wanted = expected[state] >= 0
        wanted[list(vocabulary.eos_ids)] = ends[state]
        assert (bits == wanted).all()


def distances(following: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Shortest ways, by relaxing all moves until nothing changes."""
    distance = np.where(ends, 0, FAR).astype(np.int64)
    while True:
        beyond = np.where(following >= 0, distance[following], FAR).min(axis=1)
        shorter = np.minimum(distance, np.where(beyond < FAR, beyond + 1, FAR))
        if (shorter == distance).all():
            return distance
        distance = shorter


def test_states_without_a_way_out_in_the_vocabulary_are_not_entered() -> None:
    vocabulary = Vocabulary((b"a", b"b", b"ab", None), (3,), 4, lambda text: [0] * len(text))
    moves: TokenMoves = token_moves(compile_regular("ab|ac|abb"), build_trie(vocabulary.tokens, {3}), 4)
    assert moves.distance[0] == 1
    dead = token_moves(compile_regular("ab|bc"), build_trie(vocabulary.tokens, {3}), 4)
    token_class, following = dead.dense((3,))
    assert following[0, token_class[1]] == -1
    with pytest.raises(GrammarError, match="no tokens"):
        token_moves(compile_regular("ac"), build_trie(vocabulary.tokens, {3}), 4)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_masks_and_verdicts_are_those_of_the_grammar_compiler(
    pattern: str, vocabulary: Vocabulary, tokens: TokenTable, trie: tuple[Level, ...]
) -> None:
    grammar, rng = make(pattern, tokens, trie), random.Random(3)
    row, other = (np.zeros(tokens.num_words, np.int32) for _ in range(2))
    num_equal = 0
    for _ in range(6):
        ours, theirs = grammar.matcher(), grammar.plain.matcher()
        for _ in range(12):
            ours.fill_mask(row)
            theirs.fill_mask(other)
            difference = np.unpackbits((row ^ other).view(np.uint8), bitorder="little")
            assert all(vocabulary.tokens[token] == b"\0" for token in np.flatnonzero(difference)), pattern
            assert (ours.accepting, ours.finished) == (theirs.accepting, theirs.finished)
            num_equal += 1
            allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            choices = [int(token) for token in allowed if token not in vocabulary.eos_ids]
            if not choices:
                break
            token = rng.choice(choices)
            assert ours.accept(token) == theirs.accept(token) == token
    assert num_equal > 10


def test_random_patterns_have_the_masks_of_the_grammar_compiler(
    vocabulary: Vocabulary, tokens: TokenTable, trie: tuple[Level, ...]
) -> None:
    rng = random.Random(5)
    row, other = (np.zeros(tokens.num_words, np.int32) for _ in range(2))
    for _ in range(40):
        pattern = random_pattern(rng) + "c"
        grammar = make(pattern, tokens, trie)
        ours, theirs = grammar.matcher(), grammar.plain.matcher()
        for _ in range(8):
            ours.fill_mask(row)
            theirs.fill_mask(other)
            difference = np.flatnonzero(np.unpackbits((row ^ other).view(np.uint8), bitorder="little"))
            assert all(vocabulary.tokens[token] == b"\0" for token in difference), pattern
            allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            choices = [int(token) for token in allowed if token not in vocabulary.eos_ids]
            if not choices:
                break
            token = rng.choice(choices)
            assert ours.accept(token) == theirs.accept(token)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_words_end_within_any_budget_that_holds_one(
    pattern: str, vocabulary: Vocabulary, tokens: TokenTable, trie: tuple[Level, ...]
) -> None:
    grammar, rng = make(pattern, tokens, trie), random.Random(7)
    row = np.zeros(tokens.num_words, np.int32)
    automaton, shortest = compile_regular(pattern), grammar.min_tokens()
    assert shortest is not None
    for budget in [*range(shortest, shortest + 6), shortest + 30]:
        for _ in range(4):
            matcher, text = grammar.matcher(), b""
            for remaining in reversed(range(budget)):
                if matcher.finished:
                    break
                matcher.fill_mask(row)
                allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
                token = matcher.accept(int(rng.choice(allowed.tolist())), remaining)
                if token in vocabulary.eos_ids:
                    break
                text += vocabulary.tokens[token] or b""
            assert matcher.accepting, (pattern, budget, text)
            assert matches(automaton, text)


def test_a_budget_too_small_is_left_to_the_other_grammar(tokens: TokenTable, trie: tuple[Level, ...]) -> None:
    grammar = make("[0-9]{4}-[0-9]{2}", tokens, trie)
    assert grammar.min_tokens() == 2
    matcher, plain = grammar.matcher(), grammar.plain.matcher()
    token = tokens.known(["1"])[0]
    for remaining in (0, 0):
        assert matcher.accept(token, remaining) == plain.accept(token, remaining)
        assert (matcher.accepting, matcher.finished) == (plain.accepting, plain.finished)
    assert matcher.state is None
    copy = matcher.copy()
    copy.rollback(1)
    assert copy.accept(token) == token


def test_rollback_copy_and_what_is_refused(vocabulary: Vocabulary, tokens: TokenTable, trie: tuple[Level, ...]) -> None:
    matcher = make("[0-9]{3}x?", tokens, trie).matcher()
    digit, letter, end = tokens.known(["1"])[0], tokens.known(["x"])[0], vocabulary.eos_ids[0]
    for wrong in (letter, end, -1, vocabulary.size + 5):
        with pytest.raises(MatcherError, match="not allowed"):
            matcher.accept(wrong)
    states = [matcher.state]
    for _ in range(3):
        matcher.accept(digit)
        states.append(matcher.state)
    assert matcher.accepting and not matcher.finished
    assert matcher.accept(end) == end and matcher.state == states[-1]
    copy = matcher.copy()
    copy.accept(letter)
    assert copy.finished and not matcher.finished
    matcher.rollback(2)
    assert matcher.state == states[1]
    with pytest.raises(MatcherError, match="cannot take back"):
        matcher.rollback(2)
    with pytest.raises(MatcherError, match="words"):
        matcher.fill_mask(np.zeros(1, np.int32))


@pytest.mark.parametrize(
    ("pattern", "taken", "forced"),
    [
        ("Paris and Berlin", "", "Paris and Berlin"),
        ("(Paris|Berlin) and (city|country)", "Paris", " and"),
        ("[0-9]{2} city", "12", " city"),
        ("[0-9]+ city", "12", ""),
        ("gre(y|en)", "", ""),
    ],
)
def test_forced_tokens_are_those_of_the_whole_text(
    pattern: str, taken: str, forced: str, vocabulary: Vocabulary, tokens: TokenTable, trie: tuple[Level, ...]
) -> None:
    """Forced text in the model's tokens, up to where they depend on what is open."""
    grammar = make(pattern, tokens, trie)
    ours, theirs = grammar.matcher(), grammar.plain.matcher()
    for token in vocabulary.encode(taken):
        assert ours.accept(token) == theirs.accept(token)
    found = ours.forced_tokens()
    assert found == theirs.forced_tokens()
    assert b"".join(vocabulary.tokens[token] or b"" for token in found) == forced.encode()
    for token in found:
        assert ours.accept(token) == token


def test_choices_end_whole(tokens: TokenTable, trie: tuple[Level, ...]) -> None:
    words = ("Paris", "Par", "Berlin")
    automaton = compile_words(word.encode() for word in words)
    plain: Grammar = compile_grammar(Choice(words), tokens)
    grammar = RegularGrammar(automaton, token_moves(automaton, trie, tokens.vocabulary.size), tokens, plain=plain)
    matcher = grammar.matcher()
    matcher.accept(tokens.known(["P"])[0])
    matcher.accept(tokens.known(["a"])[0])
    matcher.accept(tokens.known(["r"])[0])
    assert matcher.accepting and not matcher.finished
    assert grammar.num_bytes > plain.num_bytes
