"""Expressions of context-free grammars over characters, and whether they have words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

LAST_CHAR = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)


@dataclass(frozen=True)
class CharRanges:
    """One character of `ranges`: first and last codes, in order and apart."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Name:
    """The texts that the rule `name` derives."""

    name: str


@dataclass(frozen=True)
class Sequence:
    """One after another; empty for the empty text."""

    items: tuple[Expression, ...]


@dataclass(frozen=True)
class OneOf:
    """One of several."""

    options: tuple[Expression, ...]


@dataclass(frozen=True)
class Repetition:
    """`low` to `high` times; None: without end."""

    item: Expression
    low: int
    high: int | None


Expression = CharRanges | Name | Sequence | OneOf | Repetition


def to_chars(ranges: Iterable[tuple[int, int]]) -> CharRanges:
    """The characters of ranges that may overlap; halves of surrogate pairs are none."""
    pieces: list[tuple[int, int]] = []
    for first, last in ranges:
        pieces += [(first, min(last, _SURROGATES[0] - 1)), (max(first, _SURROGATES[1] + 1), last)]
    merged: list[tuple[int, int]] = []
    for first, last in sorted(piece for piece in pieces if piece[0] <= piece[1]):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return CharRanges(tuple(merged))


def complement(chars: CharRanges) -> CharRanges:
    """All other characters."""
    starts = [0, *(last + 1 for _, last in chars.ranges)]
    stops = [*(first - 1 for first, _ in chars.ranges), LAST_CHAR]
    return to_chars(gap for gap in zip(starts, stops, strict=True) if gap[0] <= gap[1])


ANY_CHAR = to_chars([(0, LAST_CHAR)])


def names_in(expression: Expression) -> set[str]:
    """The rules that an expression refers to."""
    match expression:
        case Name(name):
            return {name}
        case Sequence(parts) | OneOf(parts):
            return {name for part in parts for name in names_in(part)}
        case Repetition(item):
            return names_in(item)
    return set()


def with_words(rules: Mapping[str, Expression]) -> set[str]:
    """The rules that derive a text at all, rather than going on for ever."""
    return _least(rules, has_word)


def _least(rules: Mapping[str, Expression], holds: Callable[[Expression, set[str]], bool]) -> set[str]:
    """The rules for which something holds that holds for an expression because of the rules it names."""
    found: set[str] = set()
    changed = True
    while changed:
        new = {name for name, body in rules.items() if name not in found and holds(body, found)}
        changed = bool(new)
        found |= new
    return found


def has_word(expression: Expression, known: set[str]) -> bool:
    """Returns whether an expression derives a text, if of all rules those in `known` do."""
    return _derives(expression, known, with_chars=True)


def is_nullable(expression: Expression, known: set[str]) -> bool:
    """Returns whether an expression derives the empty text, if of all rules those in `known` do."""
    return _derives(expression, known, with_chars=False)


def _derives(expression: Expression, known: set[str], *, with_chars: bool) -> bool:
    match expression:
        case CharRanges(ranges):
            return with_chars and bool(ranges)
        case Name(name):
            return name in known
        case Sequence(items):
            return all(_derives(item, known, with_chars=with_chars) for item in items)
        case OneOf(options):
            return any(_derives(option, known, with_chars=with_chars) for option in options)
        case Repetition(item, low, _):
            return low == 0 or _derives(item, known, with_chars=with_chars)


def nullable_rules(rules: Mapping[str, Expression]) -> set[str]:
    """The rules that derive the empty text."""
    return _least(rules, is_nullable)


def without_dead_ends(expression: Expression, known: set[str]) -> Expression:
    """Takes out parts that derive no word. The expression itself must derive one."""
    match expression:
        case Sequence(items):
            return Sequence(tuple(without_dead_ends(item, known) for item in items))
        case OneOf(options):
            return OneOf(tuple(without_dead_ends(option, known) for option in options if has_word(option, known)))
        case Repetition(item, low, high):
            if high == 0 or not has_word(item, known):
                return Sequence(())
            return Repetition(without_dead_ends(item, known), low, high)
    return expression
