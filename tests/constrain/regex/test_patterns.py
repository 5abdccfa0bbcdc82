"""Patterns against Python's regular expressions, which mean the same where the dialects meet."""

from __future__ import annotations

import itertools
import time
from contextlib import suppress

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.constrain.regex.language import Language
from bough.constrain.regex.patterns import PatternError, parse_pattern, parse_whole

ALPHABET = "ab-\n"
TEXTS = ["".join(chars) for length in range(5) for chars in itertools.product(ALPHABET, repeat=length)]

_ATOMS = st.sampled_from(["a", "b", "-", "ab", "[ab]", "[^a]", ".", r"\w", r"\W", r"\s", "(?:a|-b)", "(?:)"])
_LOOKS = st.sampled_from(["(?={})", "(?!{})"])
_EDGES = st.sampled_from(["^", r"\Z", r"\b", r"\B", "(?<=a)", "(?<!b)", "(?<![-a])", "(?<=^|a)"])
_COUNTS = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,7}", "*?", "{2,}"])


def _sequences(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(parts, min_size=1, max_size=3).map("".join)


def _bigger(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return (
        _sequences(parts)
        | st.tuples(parts, parts).map(lambda two: f"(?:{two[0]}|{two[1]})")
        | st.tuples(parts, _COUNTS).map(lambda drawn: f"(?:{drawn[0]}){drawn[1]}")
        | st.tuples(_LOOKS, parts).map(lambda drawn: drawn[0].format(drawn[1]))
    )


PLAIN = st.recursive(
    _ATOMS,
    lambda parts: (
        _sequences(parts)
        | st.tuples(parts, parts).map(lambda two: f"({two[0]}|{two[1]})")
        | st.tuples(parts, _COUNTS).map(lambda drawn: f"({drawn[0]}){drawn[1]}")
    ),
    max_leaves=8,
)
ASSERTING = st.recursive(_ATOMS | _EDGES, _bigger, max_leaves=8)


def _same(pattern: str, language: Language, *, whole: bool) -> None:
    """Python's `.` excludes one line end only; the texts have no other."""
    expected = regex.compile(pattern, regex.ASCII)
    for text in TEXTS:
        found = expected.fullmatch(text) if whole else expected.search(text)
        assert language.contains(text) == bool(found), (pattern, text)


@settings(max_examples=150, deadline=None)
@given(PLAIN)
def test_patterns_match_what_they_match_elsewhere(pattern: str) -> None:
    _same(pattern, parse_pattern(pattern), whole=False)
    _same(pattern, parse_whole(pattern), whole=True)


@settings(max_examples=200, deadline=None)
@given(ASSERTING)
def test_assertions_hold_where_they_hold_elsewhere(pattern: str) -> None:
    for parse in (parse_pattern, parse_whole):
        try:
            language = parse(pattern)
        except PatternError:
            continue
        _same(pattern, language, whole=parse is parse_whole)


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("^[a-z]{3}-\\d{4}$", ["abc-1234"], ["abc-123", "xabc-1234", "abc-1234\n"]),
        ("foo", ["foo", "a foo b"], ["fo", ""]),
        ("^x-", ["x-", "x-y"], ["ax-"]),
        ("^$", [""], ["a", "\n"]),
        ("", ["", "anything"], []),
        ("^a|b$", ["ax", "xb"], ["xa", "bx"]),
        ("^(?!.*foo)[a-z]+$", ["bar", "fo"], ["foo", "afoob", ""]),
        ("^(?=.*[A-Z])(?=.*\\d).{4,}$", ["abC1", "1AAA"], ["abc1", "aC1"]),
        ("^.*(?<!\\.json)$", ["a", "a.json2"], ["a.json", ".json"]),
        ("(?<!foo)bar", ["bar", "xbar", "foobarbar"], ["foobar", "ba"]),
        ("(?<=\\d)px$", ["1px"], ["px", "apx"]),
        ("(^|,)x(,|$)", ["x", "a,x", "x,b"], ["ax", "xb"]),
        ("^((a$)|b)*$", ["", "a", "bba", "bb"], ["ab", "aa"]),
        ("^(?:(^|,)x){5,}$", ["x,x,x,x,x"], ["x,x,x,x", "xxxxx"]),
        ("\\bcat\\b", ["cat", "a cat!"], ["cats", "concat"]),
        ("^((?!foo).)*$", ["", "bar", "fo"], ["foo", "afoob"]),
        ("^((?=[ab]).){5,}$", ["ababa"], ["abab", "ababc"]),
        ("^a((?!--)[a-z-])+$", ["a-b-c", "a-"], ["a--", "a", "ab--c"]),
        ("^((?!foo).){3,}", ["abc", "abcfoo"], ["ab", "abfoo"]),
        ("^((?!-)[a-z-]{1,63}(?<!-)\\.)+[a-z]{2,6}$", ["a.com", "a-b.c.org"], ["-a.com", "a-.com", "a", "a..com"]),
        ("^(\\b\\w+ ?)+$", ["foo bar"], [" foo", "foo  bar"]),
        ("(?m)^a$", ["a", "b\na\nc"], ["ba"]),
        ("^(?i)straße$", ["STRAẞE", "straße"], ["strasse"]),
        ("^(?i:a)b$", ["Ab", "ab"], ["aB"]),
        ("^(?s:.)$", ["\n"], ["ab"]),
        ("^.$", ["\t", "\u0085", "\U0001f600"], ["\n", "\r", "\u2028", "\u2029"]),
        ("^\\s$", [" ", "\ufeff", "\u3000", "\v"], ["\u180e", "\u200b", "\u0085"]),
        ("^\\d$", ["7"], ["\u0667"]),
        ("^\\w$", ["_", "Z"], ["é", "-"]),
        ("^\\p{L}$", ["é", "日"], ["1"]),
        ("^\\p{Script=Greek}$", ["α"], ["a"]),
        ("^\\P{L}[^\\p{Lu}]$", ["1a"], ["aa", "1A"]),
        ("^\\x41\\u0042\\u{43}\\cJ\\0\\t$", ["ABC\n\0\t"], ["ABC"]),
        ("^\\ud83d\\ude00[\\ud83d\\ude00-\\ud83d\\ude05]$", ["\U0001f600\U0001f605"], ["\U0001f600a"]),
        ("^[\\w-.]+$", ["a-.b"], ["a b"]),
        ("^[a-\\d]$", ["-", "a", "5"], ["b"]),
        ("^[\\b\\-\\]]$", ["\b", "-", "]"], ["b"]),
        ("^[^]$", ["\n", "x"], [""]),
        ("^a[]b", [], ["ab", "a", "b", ""]),
        ("^[[:alpha:]_]+$", ["ab_"], ["a1", ":"]),
        ("^{}]a{b$", ["{}]a{b"], ["a"]),
        ("^a{,3}$", ["", "aaa"], ["aaaa"]),
        ("^(?P<n>a)(?<m>b)(?:c)(?#no)$", ["abc"], ["ab"]),
        ("\\Aa\\z", ["a"], ["ab"]),
        ("^\\/\\-\\_\\@$", ["/-_@"], ["/"]),
        ("^*a", ["a", "ba"], ["b"]),
        ("^(?=a)*b", ["b"], ["a"]),
    ],
)
def test_what_a_pattern_means(pattern: str, matching: list[str], other: list[str]) -> None:
    language = parse_pattern(pattern)
    assert [text for text in matching if not language.contains(text)] == []
    assert [text for text in other if language.contains(text)] == []


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "not closed"),
        ("a)", "no group to close"),
        ("[a", "class is not closed"),
        ("*a", "nothing to repeat"),
        ("a**", "nothing to repeat"),
        ("a{2}{3}", "nothing to repeat"),
        ("a{3,2}", "counts are out of order"),
        ("[z-a]", "range is out of order"),
        ("\\", "ends in a backslash"),
        ("\\y", "unknown escape"),
        ("\\p{Nothing}", "no Unicode property"),
        ("\\pl", "needs a property"),
        ("\\u{110000}", "no such code point"),
        ("(?<1>a)(?<>b)", "needs a name"),
        ("(?y)", "unknown kind of group"),
    ],
)
def test_what_is_no_pattern_is_invalid(pattern: str, reason: str) -> None:
    with pytest.raises(PatternError, match=reason) as caught:
        parse_pattern(pattern)
    assert caught.value.invalid and 0 <= caught.value.position <= len(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a)\\1",
        "(?<n>a)\\k<n>",
        "(?P<n>a)(?P=n)",
        "(?>a)",
        "a++",
        "(?R)",
        "(?x) a",
        "(?:a(?=b)|b)*c",
        "^(?:a\\b)+$",
        "^a(?:b(?<=cb))*$",
        "a{9999999999}",
        "(" * 201 + ")" * 201,
        "a" * 16_385,
    ],
)
def test_what_cannot_be_enforced_is_refused_and_not_called_invalid(pattern: str) -> None:
    with pytest.raises(PatternError) as caught:
        parse_pattern(pattern)
    assert not caught.value.invalid


@pytest.mark.parametrize(
    "pattern",
    [
        "(" * 200 + "a" + ")" * 200,
        "(a|" * 199 + "b" + "c)*" * 199,
        "(^a|" * 199 + "b" + "c)*" * 199,
        "a?" * 8_000,
        "(?:a|bc)?" * 1_800,
        "x" * 16_384,
        "[a-z]{0,2000}",
        "^([a-z]{1,200} ?){1,200}$",
        "(a|b)*a(a|b){16}",
        "(?:(?:(?:^a|b){0,4}c){0,4}d){0,4}",
        "(?:" * 15 + "(?=ab*c)a" + "|bc){0,4}" * 15,
        "^(?!.*(?:a|b|c){1,50}$)(?=.*d)(?!e.*f)[a-z]{3,60}$",
    ],
)
def test_large_patterns_are_read_or_refused_in_little_time(pattern: str) -> None:
    start = time.perf_counter()
    with suppress(PatternError):
        language = parse_pattern(pattern)
        language.contains("abc" * 100)
        language.shortest(budget=2_000)
        language.is_empty(budget=2_000)
    assert time.perf_counter() - start < 5


def test_counts_stay_counts() -> None:
    assert parse_whole("[a-z]{0,2000}") == Language.length(0, 2000) & parse_whole("[a-z]*")
    assert parse_pattern("^a[a-z]+$") == parse_whole("a[a-z]{1,}")
