"""Sets of numbers: algebra against exact arithmetic, and their texts against the grammar that is compiled from them."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from bough.constrain import GrammarCompiler, Lark, Vocabulary
from bough.constrain.accepting import grammar_accepts
from bough.constrain.regex.numbers import Number, NumberSet, exact

_ENDS: tuple[int | float, ...] = (
    *(0, 1, -1, 2, 9, 10, 11, 99, 100, 101, 255, -5, -17, -100, 0.5, -3.25, 0.1, 0.3, 1e-7, 2.5e-9, 99.99, 1.005),
    *(0.30000000000000004, 123.456, 1e300, -1e300, 2**53, 2**53 + 1, 2**63, -(2**63), 10**18 + 7, 1e16, 3.7e22, 1e-5),
)
_UNITS: tuple[int | float, ...] = (
    1,
    2,
    3,
    5,
    6,
    10,
    12,
    100,
    1000,
    8,
    60,
    0.01,
    0.5,
    0.25,
    0.1,
    1.5,
    0.3,
    0.05,
    7.5,
    7,
)
_KEYWORDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


def _draw(rng: random.Random) -> NumberSet:
    keywords = {keyword: rng.choice(_ENDS) for keyword in _KEYWORDS if rng.random() < 0.35}
    if rng.random() < 0.35:
        keywords["multipleOf"] = rng.choice(_UNITS)
    kind = rng.random()
    excluded = rng.sample(_ENDS, rng.choice((0, 0, 1, 3)))
    numbers = NumberSet.of(integers=kind < 0.35, fractions=0.35 < kind < 0.5, excluded=excluded, **keywords)
    return numbers & NumberSet(others=frozenset((exact(rng.choice(_UNITS)),))) if rng.random() < 0.15 else numbers


def _near(numbers: NumberSet, rng: random.Random) -> set[Fraction]:
    """Numbers in it and around its ends."""
    unit = numbers.multiple or Fraction(1, rng.choice((1, 2, 10, 100)))
    found = {unit * rng.randint(-(10 ** rng.randint(1, 20)), 10 ** rng.randint(1, 20)) for _ in range(6)}
    found |= {unit * rng.randint(-50, 50) for _ in range(6)}
    for end in {numbers.span.low, numbers.span.high, *numbers.excluded} - {None}:
        assert end is not None
        for step in (Fraction(0), Fraction(1), Fraction(1, 10), Fraction(1, 1000), unit):
            found |= {end + step, end - step}
        double = float(end)
        found |= {exact(double * 3), exact(math.nextafter(double, math.inf)), exact(math.nextafter(double, -math.inf))}
    return found


def _texts(value: Fraction, rng: random.Random) -> Iterator[str]:
    """Ways to write `value`, and one of what is almost it."""
    plain = (
        f"{Decimal(value.numerator) / Decimal(value.denominator):f}" if value.denominator != 1 else str(value.numerator)
    )
    yield plain
    yield f"{plain}.0" if "." not in plain else f"{plain}0"
    yield repr(float(value))
    yield from ("-0", "-0.0") if not value else ()
    yield (plain if "." in plain else f"{plain}.") + "0" * rng.randint(0, 25) + "1"
    yield f"{plain.partition('.')[0]}.{'9' * rng.randint(1, 25)}"


def _matches(found: tuple[list[str], list[list[str]]], text: str) -> bool:
    def all_of(expressions: Iterable[str]) -> bool:
        return all(re.fullmatch(expression, text) for expression in expressions)

    return all_of(found[0]) and not any(map(all_of, found[1]))


def _readings(text: str) -> list[Number]:
    """Numbers that readers make of a text: the exact one, and the double."""
    double = json.loads(text)
    return [Decimal(text), *([double] if isinstance(double, float) and not math.isinf(double) else [])]


@pytest.mark.parametrize("seed", range(4))
def test_texts_are_those_of_members(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(25):
        numbers = _draw(rng)
        for canonical in (False, True):
            found = numbers.expressions(canonical)
            if found is None:
                continue
            for value in _near(numbers, rng):
                for text in _texts(value, rng):
                    inside = all(map(numbers.contains, _readings(text)))
                    if _matches(found, text):
                        assert inside, (numbers, text, found)
                        assert not canonical or ((text[:2] != "-0" or float(text)) and "e" not in text)
                    elif inside and re.fullmatch(r"-?[0-9]{1,15}", text) and text != "-0":
                        pytest.fail(f"{numbers} has no text {text}: {found}")


@pytest.mark.parametrize("seed", range(2))
def test_algebra_is_exact(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        first, second = _draw(rng), _draw(rng)
        both, rest = first & second, first.complement()
        for value in _near(first, rng) | _near(second, rng):
            assert both.contains(value) == (first.contains(value) and second.contains(value))
            assert first.contains(value) != any(part.contains(value) for part in rest)
            assert not (both.is_empty() and both.contains(value) and abs(value) < 10**15)


@pytest.mark.parametrize("seed", range(2))
def test_the_shortest_text_is_a_members(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(80):
        numbers = _draw(rng)
        if numbers.is_empty():
            with pytest.raises(ValueError, match="no member"):
                numbers.shortest()
        else:
            assert numbers.contains(json.loads(numbers.shortest(), parse_float=Decimal))


@pytest.mark.parametrize(
    ("keywords", "integers", "values"),
    [
        ({"exclusiveMinimum": 2, "exclusiveMaximum": 3}, True, []),
        ({"minimum": 1, "maximum": 4, "multipleOf": 5}, False, []),
        ({"minimum": -1, "maximum": 1}, True, [-1, 0, 1]),
        ({"minimum": 0.1, "maximum": 0.3, "multipleOf": 0.1}, False, [0.1, 0.2, 0.3]),
        ({"minimum": 1.5, "maximum": 1.5}, False, [1.5]),
        ({"minimum": 2**63 - 1, "maximum": 2**63 + 1, "multipleOf": 2}, True, [2**63]),
        ({"minimum": 0, "maximum": 4, "multipleOf": 1.5}, False, [0, 1.5, 3]),
    ],
)
def test_finite_sets_are_listed(keywords: dict[str, Any], integers: bool, values: list[int | float]) -> None:
    numbers = NumberSet.of(integers=integers, **keywords)
    assert numbers.values(10) == values
    assert numbers.is_empty() == (not values)
    assert numbers.values(2) == (values if len(values) <= 2 else None)


def test_emptiness_counts_what_is_left() -> None:
    even = NumberSet.of(integers=True, multipleOf=2, minimum=1, maximum=5)
    assert not (even & NumberSet.of(excluded=[2])).is_empty()
    assert (even & NumberSet.of(excluded=[2, 4])).is_empty()
    assert (even & NumberSet.of(fractions=True)).is_empty()
    assert (NumberSet.of(multipleOf=6) & NumberSet(others=frozenset((Fraction(3),)))).is_empty()
    assert not (NumberSet.of(multipleOf=2) & NumberSet(others=frozenset((Fraction(3), Fraction(5))))).is_empty()
    assert NumberSet.of(exclusiveMinimum=1.0, exclusiveMaximum=math.nextafter(1.0, 2.0)).is_empty()
    assert NumberSet().values(10) is None
    assert NumberSet.of(maximum=1e400) == NumberSet.of(maximum=10**400)


def test_huge_ends_are_written_or_refused() -> None:
    numbers = NumberSet.of(integers=True, minimum=10**400 + 7)
    found = numbers.expressions(True)
    assert found is not None
    assert _matches(found, str(10**400 + 7))
    assert not _matches(found, str(10**400 + 6))
    assert _matches(found, str(10**401))
    assert NumberSet.of(minimum=10**1500).terminal(True) is None


def test_what_has_no_small_terminal_may_have_a_schema() -> None:
    numbers = NumberSet.of(integers=True, multipleOf=7, minimum=3)
    assert numbers.terminal(True) is None
    assert numbers.schema() == {"type": "integer", "multipleOf": 7, "minimum": 3}
    some = NumberSet.of(multipleOf=7, exclusiveMinimum=0, excluded=[7])
    low = {"type": "integer", "multipleOf": 7, "exclusiveMinimum": 7}
    assert some.schema() == low
    assert (numbers & NumberSet(others=frozenset((Fraction(5),)))).schema() is None


_COMPILED = (
    (NumberSet(), "0 -0 -0.0 12 1.50 -7e3 1E-5 1e+16 1e308", "01 +1 .5 1. 1e 1e309 --1 1.0e400"),
    (NumberSet.of(integers=True), "0 -0 5.0 -12 1e+16", "0.5 1e2 5.00 01"),
    (NumberSet.of(exclusiveMinimum=0), "1 0.1 1e-07 5e3", "0 -0 0.0 0e5 -1"),
    (
        NumberSet.of(exclusiveMinimum=0.5, maximum=3.25),
        "0.51 3.25 1 1.0 3.250",
        "0.5 0.50 3.26 4 0.5000000000000000001",
    ),
    (NumberSet.of(minimum=0, multipleOf=0.01), "0 -0 19.99 5 5.5 5.50 5.500", "0.001 -1 1.999"),
    (NumberSet.of(integers=True, multipleOf=12, minimum=13), "24 120 36.0 999999996", "12 13 26 -24 0"),
    (NumberSet.of(integers=True, minimum=-5, maximum=120, excluded=[7, 100]), "-5 8 99 120 0", "7 100 -6 121 7.0"),
    (NumberSet.of(integers=True) & NumberSet(others=frozenset((Fraction(3),))), "1 2 -4 10.0", "0 3 -9 12 12.0"),
    (NumberSet.of(fractions=True), "0.5 -12.25 1e-07", "0 1 1.0 1e+16 2.000000000000000000001"),
    (NumberSet.of(integers=True, minimum=2**63, maximum=2**63 + 1), f"{2**63} {2**63 + 1}", f"{2**63 - 1} {2**63 + 2}"),
    (NumberSet.of(minimum=1e-7, maximum=1e300), "1e-07 2.5e+22 1e+300 5 0.0000001", "1e-08 1.1e+300 0 -1"),
)


@pytest.mark.parametrize(("numbers", "allowed", "refused"), _COMPILED)
def test_terminals_compile_to_what_they_say(
    numbers: NumberSet, allowed: str, refused: str, accepts: Callable[[str, str], bool]
) -> None:
    terminal = numbers.terminal(False)
    assert terminal is not None
    source = f"start: NUMBER\nNUMBER: {terminal}"
    assert [text for text in allowed.split() if not accepts(source, text)] == []
    assert [text for text in refused.split() if accepts(source, text)] == []


@pytest.mark.parametrize("numbers", [NumberSet.of(multipleOf=7, minimum=3), NumberSet.of(integers=True, multipleOf=64)])
def test_schemas_compile_to_what_they_say(numbers: NumberSet, accepts: Callable[[str, str], bool]) -> None:
    source = f"start: %json {json.dumps(numbers.schema())}"
    for value in (*range(-70, 200), 0.5, 7.5):
        assert accepts(source, json.dumps(value)) == numbers.contains(value)


@pytest.fixture(scope="module")
def accepts(compiler: GrammarCompiler, vocabulary: Vocabulary) -> Callable[[str, str], bool]:
    """Tells whether the grammar of a Lark source accepts a text."""
    return lambda source, text: grammar_accepts(compiler.compile(Lark(source)), text, vocabulary)
