"""Intervals of numbers, exact, and the doubles in them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction


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
        """Whether no number at all lies in it."""
        if self.low is None or self.high is None:
            return False
        return self.low > self.high or (self.low == self.high and (self.low_open or self.high_open))

    def holds(self, value: Fraction) -> bool:
        """Whether `value` lies in it."""
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
