"""Terminals against brute force: the grammar takes exactly the JSON texts of the strings in the language."""

from __future__ import annotations

import itertools
import json
import re
import time
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from bough.constrain.errors import GrammarTooComplexError
from bough.constrain.regex.charsets import CharSet, property_set
from bough.constrain.regex.language import Language
from bough.constrain.regex.patterns import parse_pattern
from bough.constrain.regex.terminal import to_terminal
from bough.constrain.vocabulary.token_table import TokenTable
from bough.constrain.vocabulary.vocabulary import Vocabulary

ALPHABET = 'a"\\\n\x01\x7f/é\u2028\U0001f600'
UNIVERSE = ["".join(chars) for length in range(3) for chars in itertools.product(ALPHABET, repeat=length)]


@lru_cache(maxsize=1)
def _tokenizer() -> LLTokenizer:
    """One token per byte, and one that ends."""
    tokens = (*(bytes([byte]) for byte in range(256)), None)
    return TokenTable(
        Vocabulary(tokens=tokens, eos_ids=(256,), size=257, encode=lambda text: list(text.encode()))
    ).tokenizer


def _matcher(terminal: str) -> LLMatcher:
    matcher = LLMatcher(_tokenizer(), LLMatcher.grammar_from_lark(f"start: TEXT\nTEXT: {terminal}\n"), log_level=0)
    assert not matcher.is_error(), (terminal, matcher.get_error())
    return matcher


def _takes(start: LLMatcher, text: str | bytes) -> bool:
    matcher = start.deep_copy()
    for byte in text if isinstance(text, bytes) else text.encode():
        if not matcher.validate_tokens([byte]):
            return False
        matcher.consume_token(byte)
    return bool(matcher.is_accepting())


def _writings(text: str) -> set[str]:
    """Every way in which a text may be written."""
    ways = [{json.dumps(char)[1:-1], json.dumps(char, ensure_ascii=False)[1:-1]} for char in text]
    return {f'"{"".join(written)}"' for written in itertools.product(*ways)}


def _leaves() -> st.SearchStrategy[Language]:
    texts = st.sets(st.text(st.sampled_from(ALPHABET), max_size=2), min_size=1, max_size=4).map(Language.one_of)
    sets = st.sets(st.sampled_from(ALPHABET), min_size=1).map(lambda chars: CharSet.of("".join(chars)))
    return texts | sets.map(Language.chars) | sets.map(lambda members: Language.chars(~members)) | st.just(Language.ANY)


def _combined(parts: st.SearchStrategy[Language]) -> st.SearchStrategy[Language]:
    pairs = st.tuples(parts, parts)
    counts = st.sampled_from([(0, None), (1, None), (0, 1), (1, 2), (2, 2)])
    return (
        pairs.map(lambda pair: pair[0] | pair[1])
        | pairs.map(lambda pair: pair[0] & pair[1])
        | pairs.map(lambda pair: pair[0] + pair[1])
        | parts.map(lambda part: ~part)
        | st.tuples(parts, counts).map(lambda drawn: drawn[0].repeat(*drawn[1]))
    )


@settings(max_examples=100, deadline=None)
@given(st.recursive(_leaves(), _combined, max_leaves=6))
def test_a_terminal_takes_each_writing_of_each_text_and_nothing_else(language: Language) -> None:
    if language.is_empty():
        return
    matcher = _matcher(to_terminal(language))
    for text in UNIVERSE:
        within = language.contains(text)
        for written in _writings(text):
            assert _takes(matcher, written) == within, (text, written)


@settings(max_examples=50, deadline=None)
@given(st.recursive(_leaves(), _combined, max_leaves=6))
def test_what_comes_after_a_terminal_follows_each_of_its_texts(language: Language) -> None:
    if language.is_empty():
        return
    alone, followed = _matcher(to_terminal(language)), _matcher(to_terminal(language, "END") + '\nEND: ":"|": "')
    for text in UNIVERSE[:50]:
        for written in _writings(text):
            taken = _takes(alone, written)
            assert [_takes(followed, written + end) for end in (":", ": ", "", ":x")] == [taken, taken, False, False]


@pytest.mark.parametrize("free", [Language.ANY, ~Language.EPSILON, Language.length(0, 9), ~Language.one_of(["x"])])
def test_what_is_no_json_string_is_never_taken(free: Language) -> None:
    matcher = _matcher(to_terminal(free))
    for text in ('"\\x"', '"\n"', '"\x1f"', '"\\ud800"', '"\\ud83d\\u0061"', '"\\u12"', "a", '"a', '"a"b"', '"\\"'):
        assert not _takes(matcher, text), text
    assert not _takes(matcher, b'"\xff"') and not _takes(matcher, b'"\xed\xa0\x80"') and not _takes(matcher, b'"\xc3"')
    assert _takes(matcher, '"a"') and _takes(matcher, b'"\xc3\xa9"')


def test_a_free_string_takes_every_escape_of_json() -> None:
    matcher = _matcher(to_terminal(Language.ANY))
    for text in (
        '""',
        '"\\/"',
        '"\\u00E9"',
        '"\\u0041"',
        '"\\uD83D\\uDE00"',
        '"\\u001F"',
        '"\x7f/"',
        '"\\b\\f\\n\\r\\t"',
    ):
        assert _takes(matcher, text), text


def test_other_strings_have_one_way_of_escaping() -> None:
    matcher = _matcher(to_terminal(Language.length(1)))
    for text in ('"\\/"', '"\\u00E9"', '"\\u0041"', '"\\u001F"', '"\\u000a"', '"\\uD83D\\uDE00"'):
        assert not _takes(matcher, text), text


@pytest.mark.parametrize("name", ["L", "Lu", "Script=Greek", "Emoji", "Nd", "Script=Gothic", "Cn"])
def test_each_character_of_a_property_has_both_writings(name: str) -> None:
    members = property_set(name)
    terminal = _matcher(to_terminal(Language.chars(members)))
    edges = {code + step for boundary in members.boundaries for code in (boundary,) for step in (-1, 0)}
    for char in [chr(code) for code in sorted(edges)[:: max(1, len(edges) // 300)] if 0x7F < code < 0x110000]:
        if not "\ud800" <= char <= "\udfff":
            for ascii_only in (False, True):
                assert _takes(terminal, json.dumps(char, ensure_ascii=ascii_only)) == (char in members), hex(ord(char))


def test_terminals_are_short() -> None:
    assert to_terminal(parse_pattern("^[a-z]+$")) == '/"[a-z]+"/'
    assert to_terminal(parse_pattern("^[a-z]{3}-\\d{4}$")) == '/"[a-z]{3}\\-[0-9]{4}"/'
    assert to_terminal(parse_pattern("^[a-z ]{0,2000}$")) == '/"[ a-z]{0,2000}"/'
    assert to_terminal(Language.one_of(["a", 'b"'])) == '("\\"a\\"" | "\\"b\\\\\\"\\"")'
    assert to_terminal(Language.literal("é")) == '/"(?:\\x{e9}|\\\\u00e9)"/'
    assert len(to_terminal(Language.length(0, 50))) < 200
    assert len(to_terminal(Language.chars(property_set("L")))) < 20_000


def test_there_is_no_terminal_without_texts() -> None:
    with pytest.raises(ValueError, match="no text"):
        to_terminal(Language.EMPTY)


@pytest.mark.parametrize("letter", ["a", "\\p{L}x"])
def test_what_is_shared_or_nested_too_often_is_refused(letter: str) -> None:
    part = parse_pattern(f"^{letter}$")
    shared = nested = many = part
    for _ in range(200):
        shared = (Language.literal("a") + shared) | (Language.literal("b") + shared)
        nested = ~(Language.literal("a") + nested)
        many = many + part + Language.literal("-")
    for language in (shared, nested, many if len(letter) > 1 else shared):
        with pytest.raises(GrammarTooComplexError, match="more than"):
            to_terminal(language)


def test_a_listed_language_is_filtered() -> None:
    names = Language.one_of(f"n{index}" for index in range(200))
    assert to_terminal(names & parse_pattern("^n1\\d$") & ~Language.literal("n10")).count("|") == 8


def test_texts_that_are_allowed_anyway_are_not_listed() -> None:
    free = Language.length(1)
    assert to_terminal(Language.one_of(["ab", "c"]) | free) == to_terminal(free)
    assert "c d" in to_terminal(Language.one_of(["xa", "c d"]) | parse_pattern("^x"))


def test_after_the_first_match_of_one_character_anything_may_come() -> None:
    assert to_terminal(parse_pattern("x")).startswith('/"(?:[^\\x00-\\x1f"\\\\x]|')
    assert to_terminal(parse_pattern("a*")).count("(") == to_terminal(~Language.EPSILON).count("(")


def test_many_texts_compile_in_little_time() -> None:
    start = time.perf_counter()
    names = Language.one_of(f"name {index}" for index in range(5_000))
    assert _takes(_matcher(to_terminal(names)), '"name 17"')
    assert _takes(_matcher(to_terminal(~names)), '"name x"')
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize(
    "pattern",
    [
        "^(?:a+/+){0,2}a+$",
        "^(?:a/){1,3}a/$",
        "^(?:a+/é?){2}a+$|^$",
        "^x(?:[ax]/){0,2}[ax]$|^/$",
        "^(?:aa/)*aa?$",
        "^(?:a|/){0,2}a$",
        "^(?:a/)?a$",
    ],
)
def test_words_between_separators(pattern: str) -> None:
    """Such expressions are turned around."""
    start = _matcher(to_terminal(parse_pattern(pattern)))
    expected = re.compile(pattern, re.ASCII)
    for length in range(7):
        for chars in itertools.product("a/éx"[: 3 if length > 5 else 4], repeat=length):
            text = "".join(chars)
            assert _takes(start, json.dumps(text, ensure_ascii=False)) == bool(expected.search(text)), text
