"""Searches for common words: right, shortest, and the same whatever was searched before."""

from __future__ import annotations

import itertools
import re

import pytest

from bough.constrain.regex import decisions
from bough.constrain.regex.charsets import CharSet, partition
from bough.constrain.regex.language import Language
from bough.constrain.regex.patterns import parse_pattern

TEXTS = ["".join(chars) for length in range(7) for chars in itertools.product("ab1", repeat=length)]  # shortest first
PATTERNS = ["a.*b", "^(a|1b)*$", "^.{3,5}$", "11", "^[ab]", "b$", "(a1|ba){2}", "^(.b)+$"]


def _matches(pattern: str, text: str) -> bool:
    """Searches as ECMA-262 has it: `$` is the very end, and `.` is no end of a line."""
    return bool(re.search(pattern.replace("$", r"\Z").replace(".", r"[^\n\r\u2028\u2029]"), text))


@pytest.mark.parametrize("wanted", list(itertools.combinations(PATTERNS, 2)))
def test_a_common_word_is_a_shortest_text_of_all(wanted: tuple[str, str]) -> None:
    for refused in (None, *PATTERNS):
        found = [
            text
            for text in TEXTS
            if all(_matches(pattern, text) for pattern in wanted) and (refused is None or not _matches(refused, text))
        ]
        language = Language.intersection(map(parse_pattern, wanted))
        if refused is not None:
            language -= parse_pattern(refused)
        word = language.shortest()
        assert language.is_empty() is (word is None)
        if found:
            assert word is not None
            assert len(word) <= len(found[0])
        if word is not None:
            assert all(_matches(pattern, word) for pattern in wanted)
            assert refused is None or not _matches(refused, word)


def test_lengths_are_counted_without_a_state_for_each_expression() -> None:
    parts = ["^([a-z][0-9])+$", "^((c1d3g3).{4,8}){6,6}", "(t|8){10,10}$"]
    language = Language.intersection([*map(parse_pattern, parts), Language.length(1000)])
    word = language.shortest()
    assert word is not None
    assert len(word) == 1000
    assert all(_matches(part, word) for part in parts)


def test_a_budget_lasts_as_long_however_much_is_remembered() -> None:
    language = parse_pattern("((ab|ba).{2,4}){3}") & parse_pattern("^(a|b1)*$") & Language.length(12)
    budgets = [10, 40, 160, 640, 2_560]
    decisions._remembered.clear()
    fresh = [language.shortest(budget) for budget in budgets]
    assert [language.shortest(budget) for budget in budgets] == fresh
    assert fresh[0] is None
    assert fresh[-1] is not None


def test_alternatives_are_in_one_order_whatever_was_built_before() -> None:
    first, second = parse_pattern("^a.*1"), parse_pattern("b+2$")
    one = repr([item.digest for item in getattr((first | second).node, "items", ())])
    other = repr([item.digest for item in getattr((second | first).node, "items", ())])
    assert one == other
    assert (first | second) == (second | first)


def test_a_partition_parts_all_characters_by_the_sets_they_are_in() -> None:
    sets = [CharSet.of((0, 0x3000)), CharSet.of("abc"), CharSet.of("c9\U0001f600")]
    found = partition(frozenset(sets))
    for number, (members, example) in enumerate(zip(found.sets, found.examples, strict=True)):
        assert found.number(example) == number
        assert all((members & other) in (members, CharSet(())) for other in sets)
    assert found.examples[0] == "a"
    assert sum(map(len, found.sets)) == 0x110000 - 0x800
