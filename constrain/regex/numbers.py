"""Sets of JSON numbers, exact: intersection, complement, emptiness, members, and their texts as a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache, reduce
from itertools import combinations
from typing import Any, TypeAlias

from .number_texts import (
    EXACT_DIGITS,
    LARGE,
    decimals,
    either,
    exponents,
    far_from_integers,
    integers,
    literal,
    multiples,
    zeros_after,
)


@dataclass(frozen=True, slots=True)
class Span:
    """All numbers between two ends; an end of None is infinite. An open end does not belong to it."""

    low: Fraction | None = None
    high: Fraction | None = None
    low_open: bool = False
    high_open: bool = False

    def __and__(self, other: Span) -> Span:
        low, low_open = _greater((self.low, self.low_open), (other.low, other.low_open))
        minus, high_open = _greater((_minus(self.high), self.high_open), (_minus(other.high), other.high_open))
        return Span(low, _minus(minus), low_open, high_open)

    def is_empty(self) -> bool:
        """Tells whether no number at all lies in it."""
        if self.low is None or self.high is None:
            return False
        return self.low > self.high or (self.low == self.high and (self.low_open or self.high_open))

    def holds(self, value: Fraction) -> bool:
        """Tells whether `value` lies in it."""
        above = self.low is None or value > self.low or (value == self.low and not self.low_open)
        below = self.high is None or value < self.high or (value == self.high and not self.high_open)
        return above and below

    def outside(self) -> Iterator[Span]:
        """The one or two spans of what does not lie in it."""
        if self.low is not None:
            yield Span(high=self.low, high_open=not self.low_open)
        if self.high is not None:
            yield Span(low=self.high, low_open=not self.high_open)

    def without(self, values: Iterable[Fraction]) -> Iterator[Span]:
        """The spans that remain between `values`, all of which lie in it."""
        rest = self
        for value in sorted(values):
            yield Span(rest.low, value, rest.low_open, True)
            rest = Span(value, self.high, True, self.high_open)
        yield rest

    def integers(self, unit: Fraction = Fraction(1)) -> tuple[int | None, int | None]:
        """The least and the greatest k for which k * `unit` lies in it; the least is greater if there is none."""
        least = greatest = None
        if self.low is not None:
            least = math.floor(self.low / unit) + 1 if self.low_open else math.ceil(self.low / unit)
        if self.high is not None:
            greatest = math.ceil(self.high / unit) - 1 if self.high_open else math.floor(self.high / unit)
        return least, greatest

    def doubles(self) -> Span | None:
        """The closed span from its least double to its greatest, each worth its shortest decimal; None without one.

        A text between these two lies in the span also after it was rounded to a double.
        """
        low = None if self.low is None else _least_double(self.low, self.low_open)
        high = None if self.high is None else _least_double(-self.high, self.high_open)
        if math.inf in (low, high) or (low is not None and high is not None and low > -high):
            return None
        return Span(None if low is None else _decimal(low), None if high is None else -_decimal(high))

    def negative(self) -> Span:
        """The numbers whose opposites lie in it."""
        return Span(_minus(self.high), _minus(self.low), self.high_open, self.low_open)


def _minus(value: Fraction | None) -> Fraction | None:
    return None if value is None else -value


def _greater(first: tuple[Fraction | None, bool], second: tuple[Fraction | None, bool]) -> tuple[Fraction | None, bool]:
    if first[0] is None or second[0] is None:
        return second if first[0] is None else first
    return max((first[0], first[1]), (second[0], second[1]))


def _decimal(value: float) -> Fraction:
    return Fraction(repr(value))


def _least_double(bound: Fraction, strict: bool) -> float:
    """The least double whose shortest decimal is at least `bound`, or more if `strict`; infinity if there is none."""
    try:
        value = float(bound)
    except OverflowError:
        if bound > 0:
            return math.inf
        value = -math.inf
    if math.isinf(value):
        value = math.copysign(math.nextafter(math.inf, 0.0), value)
    before = math.nextafter(value, -math.inf)
    if not math.isinf(before):
        value = before
    while not math.isinf(value) and (_decimal(value) < bound or (strict and _decimal(value) == bound)):
        value = math.nextafter(value, math.inf)
    return value


Number: TypeAlias = int | float | Decimal | Fraction

MAX_TEXT = 20_000
MAX_LISTED = 200
MAX_BRANCHES = 16
MAX_DIVISORS = 12
MAX_TRIED = 10_000
MAX_POWER = 20
MAX_DIGITS = 1_000

_ONE = Fraction(1)
_LARGEST_EXACT = 2**53
_LARGE_INTEGERS = (
    (exponents(Fraction(LARGE), None) or "").replace("[0-9]+", "[0-9]{1,16}").replace("[0-9]*", "[0-9]{0,15}")
)
"""Integers from 1e+16 on, with an exponent: no more digits than it leaves before the point."""
_FRACTIONS = Span(Fraction(-(10**EXACT_DIGITS)), Fraction(10**EXACT_DIGITS), True, True)
"""Span in which doubles are sure to include others than integers."""

_POWER = "[eE](?:[+-]?[0-9]{1,2}|[+-]?[12][0-9]{2})"
_HUGE = r"[1-9](?:\.[0-9]+)?[eE](?:\+?30[0-7]|-3[01][0-9])|1(?:\.[0-7][0-9]*)?[eE]\+?308"
_PLAIN = rf"(?:0|[1-9][0-9]*)(?:\.[0-9]+)?|(?:0|[1-9][0-9]{{0,8}})(?:\.[0-9]+)?{_POWER}|{_HUGE}"
_MORE = r"[1-9][0-9]{0,8}(?:\.[0-9]+)?|0\.0{0,19}[1-9][0-9]*"
_POSITIVE = rf"[1-9][0-9]*(?:\.[0-9]+)?|(?:{_MORE})(?:{_POWER})?|{_HUGE}"
"""Texts that no reader takes for infinity, nor, these, for zero."""

_WHOLE = rf"-?[0-9]+|-?[0-9]{{1,{EXACT_DIGITS}}}\.0"


def exact(value: Number) -> Fraction:
    """The number that `value` was read from: a float stands for its shortest decimal, infinity for a huge one."""
    if isinstance(value, float):
        if math.isinf(value):
            return Fraction(10**400 if value > 0 else -(10**400))
        return Fraction(repr(value))
    return Fraction(value)


@dataclass(frozen=True, slots=True)
class NumberSet:
    """The numbers of `span` that are multiples of `multiple` (if any) and of none of `others`, but for `excluded`.

    Integers are the multiples of 1. All numbers are decimals, as texts are; equal sets may be stated differently.
    """

    span: Span = field(default_factory=Span)
    multiple: Fraction | None = None
    others: frozenset[Fraction] = frozenset()
    excluded: frozenset[Fraction] = frozenset()

    @classmethod
    def of(
        cls, *, integers: bool = False, fractions: bool = False, excluded: Iterable[Number] = (), **keywords: Number
    ) -> NumberSet:
        """Returns the numbers that `minimum`, `maximum`, `exclusiveMinimum`, `exclusiveMaximum`, `multipleOf` allow.

        Of these numbers only the `integers`, or only the `fractions` (numbers that are no integers), and none of
        `excluded`.
        """
        result = cls(
            multiple=_ONE if integers else None,
            others=frozenset((_ONE,)) if fractions else frozenset(),
            excluded=frozenset(map(exact, excluded)),
        )
        for keyword, number in keywords.items():
            value = exact(number)
            if keyword == "multipleOf":
                result &= cls(multiple=value)
            elif keyword in ("minimum", "exclusiveMinimum"):
                result &= cls(Span(low=value, low_open=keyword == "exclusiveMinimum"))
            elif keyword in ("maximum", "exclusiveMaximum"):
                result &= cls(Span(high=value, high_open=keyword == "exclusiveMaximum"))
            else:
                raise TypeError(f"{keyword} says nothing of numbers")
        return result

    # Algebra

    def __and__(self, other: NumberSet) -> NumberSet:
        span = self.span & other.span
        multiple = self.multiple or other.multiple
        if self.multiple and other.multiple:
            multiple = _common(self.multiple, other.multiple)
        others = {value if multiple is None else _common(multiple, value) for value in self.others | other.others}
        others = {value for value in others if not any(_divides(least, value) for least in others - {value})}
        return NumberSet(span, multiple, frozenset(others), self.excluded | other.excluded)._normal()

    def complement(self) -> list[NumberSet]:
        """Sets that together hold exactly the numbers that are not in it."""
        result = [NumberSet(span) for span in self.span.outside()]
        if self.multiple is not None:
            result.append(NumberSet(others=frozenset((self.multiple,))))
        result += [NumberSet(multiple=value) for value in sorted(self.others)]
        result += [NumberSet(Span(value, value)) for value in sorted(self.excluded)]
        return result

    def contains(self, value: Number) -> bool:
        """Tells whether the number that `value` was read from is in it."""
        number = exact(value)
        return (
            self.span.holds(number)
            and (self.multiple is None or _divides(self.multiple, number))
            and not any(_divides(other, number) for other in self.others)
            and number not in self.excluded
        )

    def is_empty(self) -> bool:
        """Tells whether no number is in it that a reader can tell from others, if it reads doubles.

        Exact, but for more than `MAX_DIVISORS` numbers that it may be no multiple of.
        """
        inside = replace(self, span=self.span & _FRACTIONS) if _ONE in self.others else self
        span = inside.span
        if inside.multiple is not None:
            return inside._count() == 0
        if span.low is not None and span.low == span.high:
            return span.is_empty() or not inside.contains(span.low)
        return span.is_empty() or span.doubles() is None

    # Members

    def values(self, limit: int) -> list[int | float | Decimal] | None:
        """Its members in ascending order; None if there are more than `limit`."""
        if self.is_empty():
            return []
        if self.multiple is None:
            low = self.span.low
            return [_plain(low)] if low is not None and low == self.span.high and limit > 0 else None
        num_values = self._count()
        if num_values is None or num_values > limit or self._num_steps() > MAX_TRIED:
            return None
        least, greatest = self._steps()
        assert least is not None and greatest is not None
        numbers = (self.multiple * step for step in range(least, greatest + 1))
        return [_plain(number) for number in numbers if self.contains(number)]

    @lru_cache(maxsize=1_024)  # noqa: B019  # as of `terminal`
    def shortest(self) -> str:
        """The text of a member: one of the shortest, where trying the members nearest to zero finds it.

        Raises ValueError if none is found, as when there is none.
        """
        if not self.is_empty():
            exactly = None
            for value in self._candidates():
                if self.contains(value):
                    if not isinstance(_plain(value), Decimal):
                        return _text(value)
                    exactly = exactly or _text(value)
            if exactly is not None:
                return exactly
        raise ValueError("the set of numbers has no member")

    # Texts

    @lru_cache(maxsize=1_024)  # noqa: B019  # sets are small values, and schemas share them
    def terminal(self, canonical: bool) -> str | None:
        """A Lark terminal expression for the texts of its members; None if it would be too large, or has none.

        A text is one that `json.dumps` writes, or has more digits after the point; integers may end in `.0`, zero may
        have a sign. `canonical`: integers without `.0`, zero without a sign, nothing with an exponent.
        """
        found = self.expressions(canonical)
        if found is None:
            return None
        matched, unmatched = found
        parts = [f"/{text}/" for text in matched]
        parts += [f"~({' & '.join(f'/{text}/' for text in texts)})" for texts in unmatched]
        return " & ".join(parts)

    def expressions(self, canonical: bool) -> tuple[list[str], list[list[str]]] | None:
        """`terminal` as expressions that a text matches all of, and groups of expressions, of none of which it
        matches all."""
        if any(abs(end) >= 10**MAX_DIGITS for end in (self.span.low or 0, self.span.high or 0)) or self.is_empty():
            return None
        if (self.others or self.multiple not in (None, _ONE)) and (values := self.values(MAX_LISTED)) is not None:
            return [_listed(map(exact, values), canonical)], []
        matched = [] if self.multiple in (None, _ONE) else multiples(self.multiple or _ONE)
        unmatched = [multiples(other) for other in sorted(self.others)]
        base = self._ranges(canonical)
        if base is None or matched is None or len(base) > MAX_TEXT:
            return None
        if self.multiple is None and self.others:
            after = max(map(zeros_after, self.others)) + 2
            short = rf"-?[0-9]+|-?[0-9]{{1,{max(EXACT_DIGITS - after, 1)}}}\.[0-9]{{1,{after}}}"
            matched = [f"{_WHOLE}|{far_from_integers()}" if all(map(_is_whole, self.others)) else short]
        groups = [group for group in unmatched if group is not None]
        return ([base, *matched], groups) if len(groups) == len(unmatched) else None

    def schema(self) -> dict[str, Any] | None:
        """The set as a schema that llguidance compiles by itself, or a part of it: without `1.0` for integers.

        None if it has no schema of that kind.
        """
        if self.others or len(self.excluded) > MAX_BRANCHES:
            return None
        branches = []
        for span in self.span.without(self.excluded):
            branch: dict[str, Any] = {"type": "number"}
            if self.multiple is not None:
                branch["multipleOf"] = _plain(self.multiple)
                if _is_whole(self.multiple):
                    branch["type"] = "integer"
            if span.low is not None:
                branch["exclusiveMinimum" if span.low_open else "minimum"] = _plain(span.low)
            if span.high is not None:
                branch["exclusiveMaximum" if span.high_open else "maximum"] = _plain(span.high)
            if any(isinstance(value, Decimal) for value in branch.values()):
                return None
            if not NumberSet(span, self.multiple).is_empty():
                branches.append(branch)
        return branches[0] if len(branches) == 1 else {"anyOf": branches} if branches else None

    def _ranges(self, canonical: bool) -> str | None:
        simple = self.multiple is None and not self.others and not self.excluded and not canonical
        if simple and not (self.span.low or self.span.high) and None in (self.span.low, self.span.high):
            return _by_sign(self.span)
        parts: list[str | None] = []
        for span in self.span.without(self.excluded):
            positive = self._side(span & Span(low=Fraction(0)), canonical)
            negative = self._side(span.negative() & Span(low=Fraction(0), low_open=canonical), canonical)
            if positive == negative and positive is not None:
                parts.append(f"-?{positive}")
            else:
                parts += [positive, negative and f"-{negative}"]
        return either(*parts)

    def _side(self, span: Span, canonical: bool) -> str | None:
        """The texts without a sign of numbers in `span`, which begins at zero or above."""
        if span.is_empty():
            return None
        least, greatest = span.integers()
        whole = None if _ONE in self.others else integers(least or 0, greatest)
        doubles = span.doubles()
        low = doubles.low if doubles is not None and doubles.low is not None else Fraction(0)
        exponent = None
        if doubles is not None and not canonical and self.multiple in (None, _ONE) and self.others <= {_ONE}:
            if self.multiple is None:
                exponent = exponents(low, doubles.high)
            elif doubles.high is None and low <= LARGE:
                exponent = _LARGE_INTEGERS
        if self.multiple is not None and _is_whole(self.multiple):
            if canonical or whole is None:
                return whole
            if self.multiple == 1 and not self.others and max(least or 0, greatest or 0) < _LARGEST_EXACT:
                return either(rf"{whole}(?:\.0)?", exponent)
            end = 10**EXACT_DIGITS - 1
            short = integers(least or 0, end if greatest is None else min(greatest, end))
            return either(whole, short and rf"{short}\.0", exponent)
        if self.multiple is not None:  # few enough digits that rounding changes nothing
            num_digits = max(EXACT_DIGITS - zeros_after(self.multiple), 1)
            first, last = span.integers(self.multiple)
            end_of_span = None if last is None else last * self.multiple
            return either(whole, decimals((first or 0) * self.multiple, end_of_span, num_digits=num_digits))
        if doubles is None:
            return whole
        positive = span.low == 0 and span.low_open
        point = decimals(Fraction(0) if positive else low, doubles.high, positive=positive)
        return either(whole, point, exponent)

    # Parts

    def _candidates(self) -> Iterator[Fraction]:
        """Numbers of the span, few, the shorter ones first."""
        units = [self.multiple] if self.multiple else [Fraction(1, 10**power) for power in range(MAX_POWER)]
        for unit in units:
            yield from (step * unit for step in self._outward(unit))
        doubles = self.span.doubles()
        if doubles is not None:
            yield from (end for end in (doubles.low, doubles.high) if end is not None)

    def _outward(self, unit: Fraction) -> Iterator[int]:
        """Yields the k nearest to zero for which k * `unit` lies in the span, the shorter texts first."""
        least, greatest = self.span.integers(unit)
        limit = 1_000 if self.multiple else 20 + len(self.excluded)
        if (least is None or least <= 0) and (greatest is None or greatest >= 0):
            yield 0
        up = max(least if least is not None else 1, 1)
        down = min(greatest if greatest is not None else -1, -1)
        for offset in range(limit):
            if greatest is None or up + offset <= greatest:
                yield up + offset
            if least is None or down - offset >= least:
                yield down - offset

    def _steps(self) -> tuple[int | None, int | None]:
        assert self.multiple is not None
        return self.span.integers(self.multiple)

    def _num_steps(self) -> float:
        least, greatest = self._steps()
        return math.inf if least is None or greatest is None else max(greatest - least + 1, 0)

    def _count(self) -> int | None:
        """Counts the members of a set of multiples; None if there is no end, or no knowing."""
        assert self.multiple is not None
        ratios = [other / self.multiple for other in self.others]
        if _ONE in ratios:
            return 0
        least, greatest = self._steps()
        if least is None or greatest is None or len(ratios) > MAX_DIVISORS:
            return 0 if least is not None and greatest is not None and least > greatest else None
        num_values = 0
        for length in range(len(ratios) + 1):
            for chosen in combinations(ratios, length):
                step = reduce(_common, chosen, _ONE).numerator
                num_values += (-1) ** length * max(greatest // step - (least - 1) // step, 0)
        inside = replace(self, excluded=frozenset())
        return num_values - sum(inside.contains(value) for value in self.excluded)

    def _normal(self) -> NumberSet:
        bare = replace(self, excluded=frozenset())
        return replace(bare, excluded=frozenset(value for value in self.excluded if bare.contains(value)))


def _divides(unit: Fraction, value: Fraction) -> bool:
    return (value / unit).denominator == 1


def _is_whole(value: Fraction) -> bool:
    return value.denominator == 1


def _common(first: Fraction, second: Fraction) -> Fraction:
    """The least number that is a multiple of both."""
    return Fraction(math.lcm(first.numerator, second.numerator), math.gcd(first.denominator, second.denominator))


def _plain(value: Fraction) -> int | float | Decimal:
    if _is_whole(value):
        return value.numerator
    try:
        if exact(float(value)) == value:
            return float(value)
    except OverflowError:
        pass
    return Decimal(_text(value))


def _text(value: Fraction) -> str:
    return ("-" if value < 0 else "") + literal(abs(value))


def _listed(values: Iterable[Fraction], canonical: bool) -> str:
    texts = []
    for value in values:
        sign = "-" if value < 0 else "" if value or canonical else "-?"
        after = "0*" if not _is_whole(value) else "" if canonical else r"(?:\.0)?"
        texts.append(sign + literal(abs(value)).replace(".", r"\.") + after)
    return either(*texts) or ""


def _by_sign(span: Span) -> str:
    """All numbers that are on one side of zero, or on both; with any exponent."""
    if span.low is None and span.high is None:
        return f"-?(?:{_PLAIN})"
    sign, is_open = ("", span.low_open) if span.high is None else ("-", span.high_open)
    if is_open:
        return f"{sign}(?:{_POSITIVE})"
    return rf"{sign}(?:{_PLAIN})|-?0(?:\.0+)?"
