"""Regular languages against brute force: every operation has its counterpart on the texts of a small universe."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.constrain.regex.charsets import ALL, CharSet, ignoring_case, property_set
from bough.constrain.regex.language import Language

ALPHABET = "ab\U0001f600"
LONGEST = 4
UNIVERSE = frozenset(
    "".join(chars) for length in range(LONGEST + 1) for chars in itertools.product(ALPHABET, repeat=length)
)
Pair = tuple[Language, frozenset[str]]
"""A language and its texts within the universe."""


def _concat(a: frozenset[str], b: frozenset[str]) -> frozenset[str]:
    return frozenset(one + other for one in a for other in b if len(one) + len(other) <= LONGEST)


def _repeat(texts: frozenset[str], low: int, high: int | None) -> frozenset[str]:
    rounds = frozenset({""})
    found: set[str] = set()
    for count in range((max(low, 0) + LONGEST if high is None else high) + 1):
        if count >= low:
            found |= rounds
        rounds = _concat(rounds, texts)
    return frozenset(found)


def _word_sets() -> st.SearchStrategy[Pair]:
    texts = st.text(st.sampled_from(ALPHABET), max_size=3)
    return st.sets(texts, max_size=4).map(lambda texts: (Language.one_of(texts), frozenset(texts)))


def _character_sets() -> st.SearchStrategy[Pair]:
    sets = st.sets(st.sampled_from(ALPHABET))
    named = sets.map(lambda chars: (Language.chars(CharSet.of("".join(chars))), frozenset(chars)))
    others = sets.map(
        lambda chars: (Language.chars(~CharSet.of("".join(chars))), frozenset(ALPHABET) - frozenset(chars))
    )
    return named | others


def _lengths() -> st.SearchStrategy[Pair]:
    bounds = st.tuples(st.integers(0, 3), st.none() | st.integers(0, 6))
    return bounds.map(
        lambda bound: (
            Language.length(*bound),
            frozenset(text for text in UNIVERSE if bound[0] <= len(text) <= (9 if bound[1] is None else bound[1])),
        )
    )


def _combined(parts: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    counts = st.tuples(st.integers(0, 3), st.none() | st.integers(0, 3))
    pairs = st.tuples(parts, parts)
    return (
        pairs.map(lambda pair: (pair[0][0] | pair[1][0], pair[0][1] | pair[1][1]))
        | pairs.map(lambda pair: (pair[0][0] & pair[1][0], pair[0][1] & pair[1][1]))
        | pairs.map(lambda pair: (pair[0][0] + pair[1][0], _concat(pair[0][1], pair[1][1])))
        | parts.map(lambda part: (~part[0], UNIVERSE - part[1]))
        | st.tuples(parts, counts).map(lambda drawn: _repeated(drawn[0], *drawn[1]))
    )


def _repeated(part: Pair, low: int, extra: int | None) -> Pair:
    high = None if extra is None else low + extra
    return part[0].repeat(low, high), _repeat(part[1], low, high)


LANGUAGES = st.recursive(_word_sets() | _character_sets() | _lengths(), _combined, max_leaves=8)


@settings(max_examples=200, deadline=None)
@given(LANGUAGES)
def test_membership_bounds_and_a_shortest_text_are_those_of_brute_force(pair: Pair) -> None:
    language, texts = pair
    assert {text for text in UNIVERSE if language.contains(text)} == texts
    low, high = language.bounds()
    assert all(low <= len(text) and (high is None or len(text) <= high) for text in texts)
    empty = language.is_empty()
    assert empty is not None
    shortest = language.shortest()
    assert (shortest is None) == empty
    assert shortest is None or language.contains(shortest)
    within = (language & Language.chars(CharSet.of(ALPHABET)).repeat(0)).shortest()
    if texts:
        assert within is not None and len(within) == min(map(len, texts)) and within in texts
        assert shortest is not None and len(shortest) <= len(within)


@settings(max_examples=200, deadline=None)
@given(LANGUAGES, LANGUAGES)
def test_comparisons_are_those_of_brute_force(one: Pair, other: Pair) -> None:
    disjoint, subset = one[0].disjoint(other[0]), one[0].subset_of(other[0])
    if one[1] & other[1]:
        assert disjoint is False
    if one[1] - other[1]:
        assert subset is False
    if disjoint is False:
        common = (one[0] & other[0]).shortest()
        assert common is not None and one[0].contains(common) and other[0].contains(common)
    if subset is False:
        extra = (one[0] - other[0]).shortest()
        assert extra is not None and one[0].contains(extra) and not other[0].contains(extra)
    if subset:
        assert one[1] <= other[1]


@settings(max_examples=200, deadline=None)
@given(LANGUAGES, st.integers(0, 40))
def test_all_texts_are_listed_if_they_are_few(pair: Pair, limit: int) -> None:
    language, texts = pair
    listed = language.strings(limit)
    if listed is None:
        longest = language.bounds()[1]
        if longest is not None and longest <= LONGEST:
            outside = language - Language.chars(CharSet.of(ALPHABET)).repeat(0)
            assert len(texts) > limit or outside.is_empty() is not True
    else:
        assert listed == sorted(set(listed)) and len(listed) <= limit
        assert {text for text in listed if text in UNIVERSE} == texts
        assert (language - Language.one_of(listed)).is_empty()


@settings(max_examples=200, deadline=None)
@given(LANGUAGES, LANGUAGES, LANGUAGES)
def test_equal_structure_is_equal(a: Pair, b: Pair, c: Pair) -> None:
    assert a[0] | b[0] == b[0] | a[0] and a[0] & b[0] == b[0] & a[0]
    assert (a[0] + b[0]) + c[0] == a[0] + (b[0] + c[0])
    assert ~~a[0] == a[0] and a[0] | a[0] == a[0] and a[0] & a[0] == a[0]
    assert (a[0] & ~a[0]) == Language.EMPTY and (a[0] | ~a[0]) == Language.ANY
    assert a[0] & Language.ANY == a[0] and a[0] | Language.EMPTY == a[0] and a[0] + Language.EPSILON == a[0]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 0x110000), st.integers(0, 300)), max_size=6), st.lists(st.integers(0, 0x10FFFF))
)
def test_character_sets_are_sets(spans: list[tuple[int, int]], codes: list[int]) -> None:
    members = CharSet.from_ranges((start, min(start + size, 0x110000)) for start, size in spans)
    other = CharSet.of("".join(map(chr, codes)))
    for char in {
        "a",
        "\ud7ff",
        "\ue000",
        "\U0010ffff",
        *map(chr, codes),
        *(chr(start) for start, _ in spans if start < 0x110000),
    }:
        within = any(start <= ord(char) < start + size for start, size in spans) and not 0xD800 <= ord(char) < 0xE000
        assert (char in members) == within
        assert (char in ~members) == (char in ALL and not within)
        assert (char in members | other) == (within or char in other)
        assert (char in members & other) == (within and char in other)
        assert (char in members - other) == (within and char not in other)
    assert len(members) + len(~members) == len(ALL) and ~~members == members
    assert (members <= other) == (members & other == members)


def test_properties_are_those_of_unicode() -> None:
    assert {"a", "é", "日"} <= set(property_set("L")) and "1" not in property_set("L")
    assert "α" in property_set("Script=Greek") and "a" not in property_set("sc=Grek")
    with pytest.raises(ValueError, match="no Unicode property 'Nothing'"):
        property_set("Nothing")
    assert set(ignoring_case(CharSet.of("k"))) == {"k", "K", "\u212a"}
    assert set(ignoring_case(CharSet.of("1é"))) == {"1", "é", "É"}


def test_ten_thousand_texts_are_quick() -> None:
    start = time.perf_counter()
    names = Language.one_of(f"name_{index}" for index in range(10_000))
    assert names.contains("name_17") and not names.contains("name_x")
    assert names.subset_of(Language.literal("name_") + Language.ANY)
    assert names.disjoint(Language.length(20))
    assert (~names).is_empty() is False and names.finite_texts is not None
    assert len((names & Language.length(0, 6)).strings(100) or ()) == 10
    assert time.perf_counter() - start < 2


def test_counts_are_not_written_out() -> None:
    language = Language.length(0, 100_000_000)
    assert language.contains("x" * 1000) and not Language.length(10, 20).contains("x" * 21)
    assert (language & Language.length(99_999_999)).bounds() == (99_999_999, 100_000_000)
    assert (Language.length(0, 1000) - Language.length(0, 2000)).is_empty()


def test_what_would_take_long_is_left_undecided() -> None:
    letters = Language.one_of("ab")
    sixteen = letters.repeat(0) + Language.literal("a") + letters.repeat(16, 16)
    other = letters.repeat(0) + Language.literal("b") + letters.repeat(16, 16)
    start = time.perf_counter()
    assert sixteen.disjoint(other) is None and sixteen.disjoint(other, budget=100) is None
    assert sixteen.strings(1000) is None
    assert sixteen.shortest() == "a" * 17
    assert time.perf_counter() - start < 3


def test_deep_and_long_expressions_do_not_exhaust_the_stack() -> None:
    language = Language.literal("a")
    for _ in range(600):
        language = (language + Language.literal("b")).repeat(0, 2) | Language.literal("c")
    assert language.contains("c") and language.contains("cb") and not language.contains("a")
    assert language.shortest() == ""
    assert Language.literal("x" * 100_000).contains("x" * 100_000)
