"""Bounds the size of a regular expression's automaton, for those small enough to be made at once."""

from __future__ import annotations

import re
from re import _constants, _parser  # type: ignore[attr-defined]  # the standard library's own parser of patterns
from typing import Any

MAX_POSITIONS = 14
"""An automaton has a state for each set of positions at most: 2^14 of them take half a second."""

_ENDLESS = 1 << 20


def is_small(pattern: str) -> bool:
    """Whether the automaton of `pattern` is certainly small: it has few places for characters, all of them ASCII.

    The pattern is read as Python reads it. What it reads differently from Rust's regex crate (classes in classes,
    Unicode classes) is not small.
    """
    if not pattern.isascii() or len(pattern) > 256 or "[[" in pattern or "&&" in pattern:
        return False
    try:
        return _positions(_parser.parse(pattern)) <= MAX_POSITIONS
    except (re.error, RecursionError, OverflowError):
        return False


def _positions(parsed: Any) -> int:
    """The number of characters in `parsed` when its repetitions are written out."""
    total = 0
    for kind, value in parsed:
        if kind == _constants.LITERAL:
            total += 1
        elif kind == _constants.IN:
            negated = any(part in (_constants.NEGATE, _constants.CATEGORY) for part, _ in value)
            total += _ENDLESS if negated else 1
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
