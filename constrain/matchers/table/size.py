"""Bounds the size of a regular expression's automaton, for those small enough to be made at once."""

from __future__ import annotations

import math
import re
from re import _constants, _parser  # type: ignore[attr-defined]  # the standard library's own parser of patterns
from typing import Any

MAX_PATTERN = 4_096
MAX_POSITIONS = 14
"""An automaton has a state for each set of positions at most: 2^14 of them take half a second."""
MAX_CHARS = 4_096
"""Of all texts together, where they are finitely many: an automaton has a state for each beginning at most."""

_ENDLESS = 1 << 20


def is_small(pattern: str) -> bool:
    """Whether the automaton of `pattern` is certainly small: it has few places for characters, or few short texts.

    The pattern is read as Python reads it. What it reads differently from Rust's regex crate (classes in classes,
    Unicode classes) is not small.
    """
    if len(pattern) > MAX_PATTERN or "[[" in pattern or "&&" in pattern:
        return False
    try:
        parsed = _parser.parse(_CODE_POINT.sub(_as_python, pattern))
        if parsed.state.flags & re.IGNORECASE and not pattern.isascii():
            return False
        if _positions(parsed) <= MAX_POSITIONS:
            return True
        number, length = _texts(parsed)
        return not parsed.state.flags & re.IGNORECASE and number * length <= MAX_CHARS
    except (re.error, RecursionError, OverflowError, ValueError):
        return False


_CODE_POINT = re.compile(r"((?:^|[^\\])(?:\\\\)*)\\x\{([0-9a-fA-F]{1,6})\}")


def _as_python(match: re.Match[str]) -> str:
    """A code point of more than two digits, in Python's notation."""
    return f"{match[1]}\\U{match[2]:0>8}"


def _positions(parsed: Any) -> int:
    """The number of bytes in `parsed` when its repetitions are written out."""
    total = 0
    for kind, value in parsed:
        if kind == _constants.LITERAL:
            total += len(chr(value).encode(errors="replace"))
        elif kind == _constants.IN:
            total += 1 if _is_plain_class(value) else _ENDLESS
        elif kind == _constants.BRANCH:
            total += sum(_positions(branch) for branch in value[1])
        elif kind == _constants.SUBPATTERN:
            _, added, removed, inner = value
            total += _ENDLESS if added or removed else _positions(inner)
        elif kind in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            least, most, inner = value
            times = least + 1 if most == _constants.MAXREPEAT else most
            total += min(times, _ENDLESS) * _positions(inner)
        else:  # any character, look-around, references, anchors
            total += _ENDLESS
    return total


def _texts(parsed: Any) -> tuple[float, float]:
    """At most how many texts `parsed` has, and how many bytes the longest; infinite where that is not plain."""
    number = 1.0
    length = 0.0
    for kind, value in parsed:
        if kind == _constants.LITERAL:
            times, longest = 1.0, float(len(chr(value).encode(errors="replace")))
        elif kind == _constants.IN and _is_plain_class(value):
            times, longest = float(sum(_width(part) for part in value)), 1.0
        elif kind == _constants.BRANCH:
            branches = [_texts(branch) for branch in value[1]]
            times, longest = sum(one for one, _ in branches), max(one for _, one in branches)
        elif kind == _constants.SUBPATTERN and not value[1] and not value[2]:
            times, longest = _texts(value[3])
        elif kind in (_constants.MAX_REPEAT, _constants.MIN_REPEAT) and value[1] != _constants.MAXREPEAT:
            times, longest = _texts(value[2])
            if value[1] * math.log2(times + 1) > 64:
                return math.inf, 1.0
            times, longest = (times + (value[0] != value[1])) ** value[1], value[1] * longest
        else:
            return math.inf, 1.0
        number, length = number * times, length + longest
    return number, max(length, 1.0)


def _is_plain_class(parts: Any) -> bool:
    """Whether a class holds ASCII characters and ranges of them alone."""
    return all(
        (kind == _constants.LITERAL and value < 128) or (kind == _constants.RANGE and value[1] < 128)
        for kind, value in parts
    )


def _width(part: Any) -> int:
    kind, value = part
    return value[1] - value[0] + 1 if kind == _constants.RANGE else 1
