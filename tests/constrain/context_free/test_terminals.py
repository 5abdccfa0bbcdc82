"""A greedy lexer would go on into exactly those terminals that enumerating their words finds."""

from __future__ import annotations

import itertools
import random

from bough.constrain.context_free.expressions import CharRanges, Expression, Name, OneOf, Repetition, Sequence, to_chars
from bough.constrain.context_free.terminals import Conflicts, Regular

ALPHABET = "abc"
MAX_LENGTH = 9


def chars(text: str) -> CharRanges:
    return to_chars((ord(char), ord(char)) for char in text)


def words(expression: Expression, max_length: int) -> set[str]:
    """All words of up to `max_length` characters."""
    match expression:
        case CharRanges(ranges):
            return {chr(code) for first, last in ranges for code in range(first, last + 1)} if max_length else set()
        case Sequence(items):
            found = {""}
            for item in items:
                found = {left + right for left in found for right in words(item, max_length - len(left))}
            return found
        case OneOf(options):
            return set[str]().union(*(words(option, max_length) for option in options))
        case Repetition(item, low, high):
            found, latest = ({""} if low == 0 else set()), {""}
            for count in itertools.count(1):
                latest = {left + right for left in latest for right in words(item, max_length - len(left))}
                before = len(found)
                found |= latest if count >= low else set()
                if count == high or (count >= low and len(found) == before):
                    return found
    raise AssertionError("a terminal holds no names")


def random_terminal(rng: random.Random, depth: int = 2) -> Expression:
    kind = rng.randrange(4) if depth else 0
    if kind == 0:
        return chars(rng.choice(["a", "b", "ab"]))
    parts = tuple(random_terminal(rng, depth - 1) for _ in range(rng.randrange(1, 3)))
    if kind == 1:
        return Sequence(parts)
    if kind == 2:
        return OneOf(parts)
    low = rng.randrange(2)
    return Repetition(parts[0], low, rng.choice([None, low + 1]))


def test_prolonged_is_what_enumeration_finds() -> None:
    rng = random.Random(1)
    num_found = 0
    for _ in range(300):
        terminals = [random_terminal(rng) for _ in range(3)]
        conflicts = Conflicts(terminals)
        beginnings = [
            {word[:n] for word in words(terminal, MAX_LENGTH) for n in range(len(word) + 1)} for terminal in terminals
        ]
        for number, follow in itertools.product(range(3), range(3)):
            whole = words(terminals[number], MAX_LENGTH - 3) - {""}
            next_chars = {begin for begin in beginnings[follow] if len(begin) == 1}
            expected = {
                other
                for other in range(3)
                if any(word + char in beginnings[other] for word in whole for char in next_chars)
            }
            found = conflicts.prolonged(number, conflicts.first(follow))
            assert found == expected, (terminals, number, follow)
            num_found += len(found)
    assert num_found > 500


def test_nothing_follows_the_last_terminal() -> None:
    assert Conflicts([chars("a"), Repetition(chars("a"), 0, None)]).prolonged(0, 0) == set()


def test_characters_that_begin_with_the_same_bytes_prolong_one_another() -> None:
    """A lexer over bytes goes on into a character before it has seen all of it."""
    conflicts = Conflicts([chars("a"), Sequence((chars("a"), chars("é"))), chars("è"), chars("€")])
    assert conflicts.prolonged(0, conflicts.first(2)) == {1}
    assert conflicts.prolonged(0, conflicts.first(3)) == set()


def test_rules_that_name_themselves_are_not_regular() -> None:
    regular = Regular(
        {
            "item": OneOf((chars("a"), Sequence((chars("b"), Name("item"))))),
            "pair": Sequence((Name("letter"), Name("letter"))),
            "letter": chars(ALPHABET),
        }
    )
    assert regular.weight(Name("item")) is None
    assert regular.weight(Repetition(Name("pair"), 2, 3)) == 6
    assert regular.expand(Name("pair")) == Sequence((chars(ALPHABET), chars(ALPHABET)))
