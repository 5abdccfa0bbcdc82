"""Stop patterns, against a search that tries every place and every end."""

from __future__ import annotations

import contextlib
import random
import time
from types import SimpleNamespace

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.constrain.regex.decisions import OutOfBudgetError
from bough.runtime.protocol.errors import EngineError, RequestError
from bough.runtime.protocol.stop_pattern import (
    BURST,
    MAX_OPTIONAL,
    RATE,
    WINDOW,
    PatternSearch,
    SearchBudget,
    StopMatch,
    StopPattern,
)

_ATOMS = ("a", "b", "[ab]", ".", r"\w", "(?:a|bb)", "(?:ab|a)", "ab", " ")
_AHEAD = (r"\b", r"\B", "^", "$", "(?=a)", "(?!b)", "(?=b|$)", "(?= a|ab)")
_ASSERTIONS = (*_AHEAD, "(?<=a)", "(?<!b)", "(?<=ab)", "(?<!a+b)")


@st.composite
def patterns(draw: st.DrawFn) -> str:
    parts = draw(st.lists(st.sampled_from((*_ATOMS, *_ATOMS, *_ASSERTIONS)), min_size=1, max_size=5))
    counts = [draw(st.sampled_from(("", "", "?", "*", "+", "{2}", "{1,3}"))) for _ in parts]
    items = [
        part + count if part in _ATOMS and len(part) < 3 else part for part, count in zip(parts, counts, strict=True)
    ]
    cut = draw(st.integers(0, len(items)))
    return "".join(items[:cut]) + draw(st.sampled_from(("", "", "|"))) + "".join(items[cut:])


def first_match(pattern: str, text: str) -> StopMatch | None:
    """The match that begins first, at its first end: each pair is tried, with all of the text around it."""
    for start in range(len(text)):
        for stop in range(start, len(text) + 1):
            exact = rf"(?s:(?<=\A.{{{start}}}))(?:{pattern})(?s:(?<=\A.{{{stop}}}))"
            if regex.compile(exact).match(text, start) is not None:
                return StopMatch(start, stop, text[start:stop])
    return None


def search(pattern: str, text: str) -> StopMatch | None:
    looking = PatternSearch(StopPattern(pattern), SearchBudget())
    for char in text:
        if (found := looking.advance(char)) is not None:
            return found
    return looking.finish()


@given(patterns(), st.text("aab ", max_size=9))
@settings(max_examples=400, deadline=None)
def test_the_first_place_and_its_first_end(pattern: str, text: str) -> None:
    try:
        found = search(pattern, text)
    except RequestError:  # it matches the empty text, or looks ahead in ways that cannot be followed
        return
    assert found == first_match(pattern, text)


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (r"\bEND\b", "ENDING the END x", (11, "END")),
        (r"\bEND\b", "the END", (4, "END")),
        (r"a+", "bbaaa", (2, "a")),
        (r"b$", "bbb", (2, "b")),
        (r"(?m)^b", "ab\nbc", (3, "b")),
        (r"(?i)stop", "please STOP", (7, "STOP")),
        (r"(?<=[0-9])[^0-9]", "x 12 a", (4, " ")),
        (r"(?<=[0-9])[^0-9.]|(?<=\.[0-9]+)\.", "3.14.", (4, ".")),
        (r"\p{Lu}{2}", "aBcDE", (3, "DE")),
    ],
)
def test_what_people_write(pattern: str, text: str, found: tuple[int, str]) -> None:
    start, matched = found
    assert search(pattern, text) == StopMatch(start, start + len(matched), matched)


def test_what_may_still_match_is_known() -> None:
    looking = PatternSearch(StopPattern("a[bc]+d|x"), SearchBudget())
    for char in "zabc":
        assert looking.advance(char) is None
        assert looking.live_from == 1
    assert looking.advance("x") == StopMatch(4, 5, "x")  # the a is given up
    assert looking.live_from == 5


def test_after_a_match_that_did_not_count_the_search_goes_on() -> None:
    looking = PatternSearch(StopPattern("ab"), SearchBudget())
    assert [found for char in "abxab" if (found := looking.advance(char))] == [
        StopMatch(0, 2, "ab"),
        StopMatch(3, 5, "ab"),
    ]


@pytest.mark.parametrize("pattern", ["a*", "", "(", "$", "(?!x)", "(?=.*x)a", r"(a)\1", "x{3,1}", "[b-a]"])
def test_what_cannot_serve_is_refused(pattern: str) -> None:
    with pytest.raises(RequestError) as caught:
        StopPattern(pattern)
    assert caught.value.param == "stop_regex"


HOSTILE = (
    r"(?:a|aa)+b$",
    r"(?:(?:a|b)?){200}c",
    r"(?:[ab]{1,30}){1,30}c",
    r"[ab]*a[ab]{60}c",
    r"(?:(?:a?b?){60}(?:b?a?){60}){9}c",
    r"(?:\b[ab]+\b ?){1,4}c",
    r"(a|b|ab|ba|aab|bba|abab)*c",
)


@pytest.mark.parametrize("pattern", HOSTILE)
def test_no_pattern_takes_more_than_its_budget(pattern: str) -> None:
    """In processor time: some milliseconds to compile, and the budget's microseconds for the search, however long."""
    drawn = random.Random(1)
    now = 0.0
    budget = SearchBudget(clock=lambda: now)
    began = time.thread_time()
    looking = PatternSearch(StopPattern(pattern), budget)
    with contextlib.suppress(EngineError):
        for _ in range(20_000):
            looking.advance(drawn.choice("ab"))
    assert time.thread_time() - began < 10 * (BURST * 1e-6 + 0.05) + 1.0
    assert looking._seen - looking.live_from <= WINDOW


def optional(count: int) -> str:
    return "".join(f"[^{chr(0x4E00 + number)}]?" for number in range(count)) + "Z"


def test_many_optional_parts_in_a_row_are_refused() -> None:
    """Each derivative would begin with each of them, and hold all that follow."""
    StopPattern(optional(MAX_OPTIONAL))
    for pattern in (optional(MAX_OPTIONAL + 1), f"a(?:b|{optional(MAX_OPTIONAL + 1)}){{2,3}}c"):
        with pytest.raises(RequestError, match="optional parts one after another"):
            StopPattern(pattern)


def test_what_takes_long_costs_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what its effort says, which is an estimate."""
    budget, node = SearchBudget(clock=lambda: 0.0), StopPattern(optional(40)).parts[0].match.after("")
    now = iter([0.0, 0.03, 1.0, 1.00001])
    monkeypatch.setattr("bough.runtime.protocol.stop_pattern.time", SimpleNamespace(perf_counter=lambda: next(now)))
    budget.step(node, "a")
    assert budget.remaining <= BURST - 30_000
    left = budget.remaining
    budget.step(node, "a")  # it is known now
    assert budget.remaining == left


def test_a_budget_flows_back() -> None:
    now = 0.0
    budget = SearchBudget(clock=lambda: now)
    budget.spend(BURST)
    with pytest.raises(OutOfBudgetError):
        budget.spend(1)
    now = 1.0
    budget.spend(RATE)
    with pytest.raises(OutOfBudgetError):
        budget.spend(1)
    now = 1000.0
    budget.spend(BURST)


def test_a_search_over_its_budget_is_an_error() -> None:
    budget = SearchBudget(clock=lambda: 0.0)
    looking = PatternSearch(StopPattern("[ab]*a[ab]{60}c"), budget)
    budget.remaining = 100
    code = ""
    try:
        for _ in range(400):
            looking.advance("a")
    except EngineError as error:
        code = error.code
    assert code == "stop_regex_timeout"


def test_of_a_long_text_only_what_a_match_may_have_is_kept() -> None:
    """A match may begin at each character: all of the text was kept, and copied for each."""
    looking = PatternSearch(StopPattern("[ ]x|q[^q]*z"), SearchBudget())
    most, longest = 0, "q" + "c" * (WINDOW - 2) + "z"
    for char in " " * 30_000 + longest[:-1]:
        assert looking.advance(char) is None
        most = max(most, len(looking._text))
    assert looking.advance("z") == (30_000, 30_000 + WINDOW, longest)
    assert most <= 3 * WINDOW
