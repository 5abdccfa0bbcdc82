"""Conditions are decided from left to right, by values that are there, and by patterns in linear time."""

from __future__ import annotations

import math
import time

import pytest

from bough.constrain.matchers import lexer
from bough.runtime.protocol.condition import (
    LINEAR_COST,
    MAX_DEPTH,
    Compare,
    Condition,
    Count,
    Either,
    Every,
    Hole,
    Matches,
    Negation,
    NotYetError,
    Ref,
    Times,
    as_number,
    holds,
    nodes,
    search_cost,
)
from bough.runtime.protocol.errors import EngineError, RequestError
from bough.runtime.protocol.patterns import (
    MAX_KEPT,
    MAX_MATCHED_CHARS,
    MAX_PATTERN_CHARS,
    Matching,
    Pattern,
    PatternCache,
)


class Given:
    """Values by name; what is not there is still to come."""

    def __init__(self, **texts: str) -> None:
        self.texts = texts
        self.asked: list[str] = []

    def text(self, ref: Ref) -> str:
        self.asked.append(ref.name)
        if ref.name not in self.texts:
            raise NotYetError
        return self.texts[ref.name]

    def times(self, name: Times) -> int:
        return len(self.texts[name.name])

    def contains(self, text: str, part: str) -> bool:
        return part in text

    def matches(self, pattern: str, text: str) -> bool:
        return Pattern(pattern).matches(text)


A, B, LATE = Ref(0, "a"), Ref(0, "b"), Ref(0, "late")
TRUE, FALSE = Every(()), Either(())


@pytest.mark.parametrize(
    ("left", "relation", "right", "a", "expected"),
    [
        (A, "eq", "yes", "yes", True),
        (A, "eq", "yes", " yes\n", True),
        (A, "eq", "yes", "Yes", False),
        (A, "ne", "yes", "no", True),
        (A, "lt", "b", "a", True),
        (A, "ge", "b", "a", False),
        (A, "eq", "3", "3.0", False),  # as texts
        (A, "eq", 3, "3.0", True),
        (A, "eq", 3.0, " 3 ", True),
        (A, "gt", 2, "10", True),
        (A, "gt", 2, "1e1", True),
        (A, "le", 2, "-.5", True),
        (3, "lt", A, "4", True),
        (A, "lt", 2, "one", False),
        (A, "eq", 2, "one", False),
        (A, "ne", 2, "one", True),
        (A, "gt", 2, "inf", False),
        (A, "gt", 2, "nan", False),
        (A, "gt", 2, "1_000", False),
        (A, "gt", 2, "٣", False),
        (A, "gt", 2, "9" * 65, False),
        (A, "contains", "es", "yes", True),
        (A, "contains", " y", "yes", False),
        (A, "contains", 3, "13", True),
        (A, "contains", 3.5, "13", False),
        (Times(0, "a"), "eq", 3, "xyz", True),
        (Count((TRUE, FALSE, TRUE)), "eq", 2, "", True),
        (1, "lt", 2, "", True),
    ],
)
def test_comparisons(left: object, relation: str, right: object, a: str, expected: bool) -> None:
    assert holds(Compare(left, relation, right), Given(a=a)) is expected  # type: ignore[arg-type]


def test_what_is_not_needed_is_not_waited_for() -> None:
    late = Compare(LATE, "eq", "x")
    given = Given(a="x")
    here = Compare(A, "eq", "x")
    assert holds(Either((here, late)), given)
    assert not holds(Every((Negation(here), late)), given)
    assert given.asked == ["a", "a"]
    for condition in (Every((here, late)), Either((Negation(here), late)), Compare(Count((here, late)), "ge", 1)):
        with pytest.raises(NotYetError):
            holds(condition, given)


def test_a_hole_is_no_value() -> None:
    with pytest.raises(RequestError, match="'x' was not put in"):
        holds(Compare(Hole("x"), "eq", "y"), Given())


def test_nesting_is_bounded() -> None:
    deep: Condition = TRUE
    for _ in range(MAX_DEPTH - 1):
        deep = Negation(deep)
    assert len(list(nodes(deep))) == MAX_DEPTH
    for wrapped in (Negation(deep), Every((TRUE, deep)), Compare(Count((deep,)), "eq", 1)):
        with pytest.raises(RequestError, match="32 levels"):
            list(nodes(wrapped))
    for _ in range(100_000):
        deep = Negation(deep)
    with pytest.raises(RequestError, match="32 levels"):
        list(nodes(deep))
    while isinstance(deep, Negation):  # taken apart, so that freeing it does not recur
        deep = deep.of


def test_numbers() -> None:
    assert [as_number(text) for text in ("1", "-1.5", "+2e-1", ".5", "3.", "", "1,000", "0x10")] == [
        *(1.0, -1.5, 0.2, 0.5, 3.0),
        *(None, None, None),
    ]


# Patterns


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("yes|no", "yes", True),
        ("yes|no", "yes!", False),
        ("^yes$", "yes", True),
        ("(?i)yes.*", "YES, of course", True),
        (".*", "two\nlines", False),
        ("(?s).*", "two\nlines", True),
        (r"\d{4}-\d{2}", "2024-01", True),
        ("é🦊+", "é🦊🦊", True),
        ("[^x]*", "", True),
        ("a", "\ud800", False),
    ],
)
def test_patterns_match_whole_texts(pattern: str, text: str, expected: bool) -> None:
    assert holds(Matches(A, pattern), Given(a=text)) is expected


@pytest.mark.parametrize("pattern", ["(", "", "a{2,1}", "(?=x)x", r"(a)\1", "x\0", "x" * (MAX_PATTERN_CHARS + 1)])
def test_what_is_no_pattern_is_refused_by_name(pattern: str) -> None:
    with pytest.raises(RequestError, match="the pattern ") as caught:
        Pattern(pattern)
    assert (caught.value.code, caught.value.param) == ("invalid_pattern", "ops")


@pytest.mark.parametrize(
    "pattern", ["(a*)*b", "(a|a)*b", "(a|aa)+b", "(.*a){50}", "((a|b){100}){100}", "(?s).*a.{200}b"]
)
def test_hostile_patterns_take_linear_time(pattern: str) -> None:
    started = time.monotonic()
    compiled = Pattern(pattern)
    try:
        assert not compiled.matches("a" * (MAX_MATCHED_CHARS - 1) + "c")
    except EngineError as error:
        assert error.code == "condition_too_complex"  # noqa: PT017
    assert time.monotonic() - started < 1.0


def test_a_text_that_is_too_long_is_not_looked_at() -> None:
    with pytest.raises(EngineError, match="32768 is the limit"):
        Pattern("a*").matches("a" * (MAX_MATCHED_CHARS + 1))


def test_patterns_are_compiled_once_and_kept_within_bounds() -> None:
    cache = PatternCache()
    first = cache.get("a+")
    assert cache.get("a+") is first
    for number in range(MAX_KEPT):
        cache.get(f"b{{{number + 1}}}")
    assert cache.get("a+") is not first


def test_a_pattern_whose_effort_is_used_up_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = Pattern("(ab?){1,300}")
    begun = Matching(pattern, "ab" * 200)
    assert begun.done_by(0.0) is None
    assert begun._lexer is not None
    begun._lexer.failed = True  # over another text
    assert begun.done_by(math.inf) is True
    assert pattern.matches("abaab") and not pattern.matches("abb")
    with monkeypatch.context() as patch:
        patch.setattr(lexer, "is_broken", lambda _: True)
        with pytest.raises(EngineError, match="too complex"):
            pattern.matches("ab")
    assert pattern.matches("ab")


@pytest.mark.parametrize(
    ("text", "part", "cost"),
    [
        (2499, 1250, 1250 * 1250),
        (2499, 2500, 0),
        (29_999, 99, 29_901 * 99),
        (29_999, 100, LINEAR_COST * 29_999),
        (1_000_000, 5, 999_996 * 5),
        (10, 0, 11),
    ],
)
def test_searches_cost_what_they_may_take(text: int, part: int, cost: int) -> None:
    assert search_cost("a" * text, "a" * part) == cost
