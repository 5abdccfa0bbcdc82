"""Regular expressions for the texts of numbers: between two bounds, with an exponent, or that divide evenly."""

from __future__ import annotations

import math
from fractions import Fraction

EXACT_DIGITS = 15
"""Two decimals of at most so many digits never round to the same double."""

LARGE = Fraction(10) ** 16
"""Python writes doubles from here on with an exponent; all of them are integers."""

MAX_ENDINGS = 128

_ANY = "[0-9]*"
_CHUNK = 64


def either(*alternatives: str | None) -> str | None:
    """One expression for all the `alternatives` that are not None; None if all are."""
    found = list(dict.fromkeys(part for part in alternatives if part is not None))
    if len(found) < 2:
        return found[0] if found else None
    return f"(?:{'|'.join(found)})"


def integers(low: int, high: int | None) -> str | None:
    """The integers from `low` >= 0 to `high` (None: without end), without leading zeros."""
    if high is not None and low > high:
        return None
    if low == 0:
        return either("0", integers(1, high))
    text = str(low)
    if high is None:
        if low == 10 ** (len(text) - 1):
            return f"[1-9]{_ANY}" if low == 1 else f"[1-9][0-9]{{{len(text) - 1},}}"
        return either(_between(text, "9" * len(text)), f"[1-9][0-9]{{{len(text)},}}")
    end = str(high)
    if len(end) == len(text):
        return _between(text, end)
    middle = f"[1-9]{_digits(len(text), len(end) - 2)}" if len(end) - len(text) > 1 else None
    return either(_between(text, "9" * len(text)), middle, _between("1" + "0" * (len(end) - 1), end))


def decimals(
    low: Fraction, high: Fraction | None, *, positive: bool = False, num_digits: int = EXACT_DIGITS
) -> str | None:
    """The numbers with a point from `low` >= 0 to `high`: at most `num_digits` digits stand before the point.

    `positive` leaves zero out. `low` and `high` must have finitely many decimals.
    """
    start, after = _split(low)
    end, until = (10**num_digits - 1, None) if high is None else _split(high)
    if end >= 10**num_digits:
        end, until = 10**num_digits - 1, None
    if start > end or (until is not None and low > (high or 0)):
        return None
    parts: list[str | None] = []
    if positive and not low:
        if start == end and until is not None:
            return rf"0\.(?:{_between_fractions('0' * 20 + '1', until)})"
        parts.append(r"0\.0{0,19}[1-9][0-9]*")
        start, after = 1, ""
    if start == end and (after or until is not None):
        fraction = _at_least(after) if until is None else _between_fractions(after, until)
        return either(*parts, rf"{start}\.{fraction}")
    if after:
        parts.append(rf"{start}\.{_at_least(after)}")
        start += 1
    if until is not None:
        parts.append(rf"{end}\.{_at_most(until, stop=False)}")
        end -= 1
    whole = integers(start, end)
    return either(whole and rf"{whole}\.[0-9]+", *parts)


def exponents(low: Fraction, high: Fraction | None) -> str | None:
    """The numbers from `low` >= 0 to `high`, but for zero, that Python writes as `1e+16` or more, `1e-05` or less.

    Those that are not told from zero or from infinity everywhere are left out.
    """
    top = r"1(?:\.[0-7][0-9]*)?e\+308" if high is None else None
    return either(_scaled(low, high, 16, 307), top, _scaled(low, high, -307, -5))


def multiples(unit: Fraction) -> list[str] | None:
    """Expressions that a well-formed decimal, with or without a sign, matches all of if and only if it is a multiple
    of `unit`. None if they would be too large."""
    rest = unit.numerator
    while rest % 2 == 0:
        rest //= 2
    while rest % 5 == 0:
        rest //= 5
    if rest not in (1, 3):
        return None
    ends = _endings(unit / rest)
    if ends is None:
        return None
    return [ends] if rest == 1 else [ends, _THREES]


def far_from_integers() -> str:
    """Decimals that no reader rounds to an integer: among the first 15 digits one says so."""
    parts = [r"0\.0{1,19}[1-9][0-9]*", r"0\.(?:[1-8][0-9]*|9{1,14}(?:[0-8][0-9]*)?)"]
    for most in range(3, EXACT_DIGITS, 3):  # so many digits stand before the point, or one or two fewer
        after = EXACT_DIGITS - most
        near = f"0{{1,{after - 1}}}[1-9][0-9]*|9{{1,{after - 1}}}(?:[0-8][0-9]*)?"
        parts.append(rf"[1-9][0-9]{{{most - 3},{most - 1}}}\.(?:[1-8][0-9]*|{near})")
    return f"-?(?:{'|'.join(parts)}|[^+]*e-.*)"


_WHOLE = rf"-?[0-9]+|-?[0-9]{{1,{EXACT_DIGITS}}}\.0"
_SHORT = r"-?[0-9]+|-?[0-9]{1,8}\.[0-9]{1,7}"

_FRACTION = (
    r"-?(?:(?:[1-9][0-9]{0,7}|0)\.(?:[1-8][0-9]*|0{1,6}[1-9][0-9]*|9{1,6}(?:[0-8][0-9]*)?)|0\.0{1,19}[1-9][0-9]*"
    r"|[1-9][0-9]{8,11}\.(?:[1-8][0-9]*|0{1,2}[1-9][0-9]*|9{1,2}(?:[0-8][0-9]*)?)|[1-9][0-9]{12,14}\.[1-8][0-9]*"
    r"|[^+]*e-.*)"
)
"""Texts that no reader rounds to an integer."""


def zeros_after(unit: Fraction) -> int:
    """Returns how many digits after the point a multiple of `unit` can have, which has finitely many."""
    num_digits = 0
    while (unit * 10**num_digits).denominator != 1:
        num_digits += 1
    return num_digits


def literal(value: Fraction) -> str:
    """The digits of `value` >= 0, which has finitely many, without an exponent."""
    whole, after = _split(value)
    return f"{whole}.{after}" if after else str(whole)


_R0, _R1, _R2 = "[0369.]", "[147]", "[258]"
_ONCE, _TWICE = f"{_R1}{_R0}*{_R2}", f"{_R2}{_R0}*{_R1}"
_UP, _DOWN = f"{_R1}{_R0}*{_R1}", f"{_R2}{_R0}*{_R2}"
_THREES = f"-?(?:{_R0}|{_ONCE}|(?:{_R2}|{_UP})(?:{_R0}|{_TWICE})*(?:{_R1}|{_DOWN}))*"
"""Digits whose sum is a multiple of 3; a point among them changes nothing."""


def _split(value: Fraction) -> tuple[int, str]:
    whole = value.numerator // value.denominator
    rest, digits = value - whole, zeros_after(value)
    return whole, str(int(rest * 10**digits)).zfill(digits) if digits else ""


def _digits(least: int, most: int) -> str:
    if least == most:
        return "" if not most else "[0-9]" if most == 1 else f"[0-9]{{{most}}}"
    return f"[0-9]{{{least},{most}}}"


def _zeros(least: int, most: int) -> str:
    return "" if not most else f"0{{{least},{most}}}"


def _class(low: int, high: int) -> str | None:
    if low > high:
        return None
    return str(low) if low == high else f"[{low}-{high}]"


def _then(head: str | None, tail: str | None) -> str | None:
    return None if head is None or tail is None else head + tail


def _between(low: str, high: str) -> str:
    """The texts of as many digits as `low` and `high` have, from the one to the other."""
    same = next((i for i, pair in enumerate(zip(low, high, strict=True)) if pair[0] != pair[1]), len(low))
    prefix, low, high = low[:same], low[same:], high[same:]
    if not low:
        return prefix
    first, last, rest = int(low[0]), int(high[0]), len(low) - 1
    parts = []
    if low[1:].strip("0"):
        parts.append(f"{first}{_from(low[1:])}")
        first += 1
    if high[1:].strip("9"):
        parts.append(f"{last}{_to(high[1:])}")
        last -= 1
    return prefix + (either(_then(_class(first, last), _digits(rest, rest)), *parts) or "")


def _from(low: str) -> str:
    """The texts of as many digits as `low` has that are not less."""
    if not low.strip("0"):
        return _digits(len(low), len(low))
    if len(low) == 1:
        return _class(int(low), 9) or ""
    if len(low) > _CHUNK:  # expressions may not be nested too deeply
        head, tail = low[:_CHUNK], low[_CHUNK:]
        above = None if not head.strip("9") else _from(str(int(head) + 1).zfill(_CHUNK)) + _digits(len(tail), len(tail))
        return either(above, head + _from(tail)) or ""
    more = _then(_class(int(low[0]) + 1, 9), _digits(len(low) - 1, len(low) - 1))
    return either(low[0] + _from(low[1:]), more) or ""


def _to(high: str) -> str:
    """The texts of as many digits as `high` has that are not greater."""
    if not high.strip("9"):
        return _digits(len(high), len(high))
    if len(high) == 1:
        return _class(0, int(high)) or ""
    if len(high) > _CHUNK:
        head, tail = high[:_CHUNK], high[_CHUNK:]
        below = None if not head.strip("0") else _to(str(int(head) - 1).zfill(_CHUNK)) + _digits(len(tail), len(tail))
        return either(below, head + _to(tail)) or ""
    less = _then(_class(0, int(high[0]) - 1), _digits(len(high) - 1, len(high) - 1))
    return either(high[0] + _to(high[1:]), less) or ""


def _at_least(digits: str) -> str:
    """The digits after a point that are worth at least as much as `digits`, which do not end in 0."""
    if not digits:
        return _ANY
    zeros = len(digits) - len(digits.lstrip("0"))
    if zeros:
        return either("0" * zeros + _at_least(digits[zeros:]), f"{_zeros(0, zeros - 1)}[1-9]{_ANY}") or ""
    return either(digits[0] + _at_least(digits[1:]), _then(_class(int(digits[0]) + 1, 9), _ANY)) or ""


def _at_most(digits: str, *, stop: bool) -> str:
    """The digits after a point that are worth at most as much as `digits`; none at all too if `stop`."""
    if not digits:
        return "0*" if stop else "0+"
    zeros = len(digits) - len(digits.lstrip("0"))
    if zeros:
        fewer = _zeros(int(not stop), zeros - 1) if stop or zeros > 1 else None
        return either("0" * zeros + _at_most(digits[zeros:], stop=True), fewer) or ""
    some = either(digits[0] + _at_most(digits[1:], stop=True), _then(_class(0, int(digits[0]) - 1), _ANY))
    return f"(?:{some})?" if stop else some or ""


def _between_fractions(low: str, high: str, *, stop: bool = False) -> str:
    """The digits after a point that are worth at least `low` and at most `high`."""
    length = max(len(low), len(high))
    low, high = low.ljust(length, "0"), high.ljust(length, "0")
    if not length:
        return "0*" if stop else "0+"
    first, last = int(low[0]), int(high[0])
    if first == last:
        some: str | None = low[0] + _between_fractions(low[1:], high[1:], stop=True)
    else:
        some = either(
            f"{first}{_at_least(low[1:].rstrip('0'))}",
            _then(_class(first + 1, last - 1), _ANY),
            f"{last}{_at_most(high[1:].rstrip('0'), stop=True)}",
        )
    return f"(?:{some})?" if stop and not low.strip("0") else some or ""


def _scaled(low: Fraction, high: Fraction | None, first: int, last: int) -> str | None:
    """The numbers from `low` to `high` with one digit before the point and an exponent from `first` to `last`."""
    start, end = first, last
    least, most = Fraction(1), None
    if low > Fraction(10) ** first:
        start = _exponent(low)
        least = low / Fraction(10) ** start
    if high is not None and high < Fraction(10) ** (last + 1):
        end = _exponent(high) if high else first - 1
        most = high / Fraction(10) ** end
    if start > end:
        return None
    if start == end:
        return _then(_mantissa(least, most), _power(start, end))
    parts = []
    if most is not None:
        parts.append(_then(_mantissa(Fraction(1), most), _power(end, end)))
        end -= 1
    if least != 1:
        parts.append(_then(_mantissa(least, None), _power(start, start)))
        start += 1
    if start <= end:
        parts.append(_then(_mantissa(Fraction(1), None), _power(start, end)))
    return either(*parts)


def _mantissa(low: Fraction, high: Fraction | None) -> str | None:
    whole = integers(math.ceil(low), 9 if high is None else math.floor(high))
    return either(whole, decimals(low, high, num_digits=1))


def _power(low: int, high: int) -> str | None:
    if low > 0:
        return _then(r"e\+", integers(low, high))
    return _then("e-", either(_then("0", _class(-high, min(-low, 9))), integers(max(-high, 10), -low)))


def _exponent(value: Fraction) -> int:
    power = len(str(value.numerator)) - len(str(value.denominator))
    return power if value >= Fraction(10) ** power else power - 1


def _endings(unit: Fraction) -> str | None:
    """Returns the digits that multiples of `unit`, which divides a power of 10, end in."""
    after = zeros_after(unit)
    step, length = int(unit * 10**after), 0
    while 10**length % step:
        length += 1
    if 10**length // step > MAX_ENDINGS:
        return None
    ends = [str(end).zfill(length) if length else "" for end in range(0, 10**length, step)]
    if length <= after:
        free = after - length
        parts = [f"{_digits(free, free)}{end.rstrip('0')}0*" for end in ends if end.strip("0")]
        return rf"-?[0-9]+(?:\.{either(*parts, f'[0-9]{{1,{free}}}0*' if free else '0+')})?"
    groups: dict[str, list[str]] = {}
    for end in ends:
        groups.setdefault(end[length - after :].rstrip("0"), []).append(end[: length - after])
    texts = []
    for fraction, wholes in groups.items():
        short = [str(int(whole)) for whole in wholes if len(str(int(whole))) < len(whole)]
        point = rf"\.{fraction}0*" if fraction else r"(?:\.0+)?"
        texts.append(f"{either(f'[0-9]*{_words(wholes)}', *short)}{point}")
    return f"-?{either(*texts)}"


def _words(words: list[str]) -> str:
    lasts: dict[str, str] = {}
    for word in words:
        lasts[word[:-1]] = lasts.get(word[:-1], "") + word[-1]
    return either(*(head + (last if len(last) == 1 else f"[{last}]") for head, last in lasts.items())) or ""
