"""Regular expressions for how the characters of a text are written in a JSON string.

Printable ASCII stands for itself but for `"` and `\\`, which are escaped. A control character has one escape: its
short one, or `\\u00xx`. Every other character, delete among them, is written raw or, as ASCII-only writers do, as
`\\uxxxx` in lower case, beyond the basic plane as a surrogate pair. Each writing has one reading, so complements are
exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from .charsets import ALL, SURROGATES, CharSet

Spans = tuple[tuple[int, int], ...]
"""Half-open ranges, ascending."""

SHORT_ESCAPES: Final = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
RAW: Final = ~(CharSet.of((0, 0x20)) | CharSet.of('"\\'))
"""What can stand for itself."""
PLAIN: Final = CharSet.of((0x20, 0x7F)) & RAW
"""What is written as itself only."""
ESCAPED: Final = ~CharSet.of((0x20, 0x7F), "\b\f\n\r\t")
"""What can be written as `\\uxxxx`."""
BASIC: Final = CharSet.of((0, 0x10000))

_META: Final = frozenset("\\.+*?()|[]{}^$#&-~/")


def literal(text: str) -> str:
    """An expression for how `text` may be written."""
    return "".join(map(_one_character, text))


@lru_cache(maxsize=1024)
def _one_character(char: str) -> str:
    if char in SHORT_ESCAPES:
        return "\\\\" + escaped(SHORT_ESCAPES[char])
    return escaped(char) if " " <= char <= "~" else f"(?:{alternatives(CharSet.of(char))})"


def escaped(char: str) -> str:
    """An expression for `char` itself."""
    if char in _META:
        return "\\" + char
    if " " <= char <= "~":
        return char
    return f"\\x{ord(char):02x}" if char < "\x80" else f"\\x{{{ord(char):x}}}"


@lru_cache(maxsize=1024)
def alternatives(members: CharSet) -> str:
    """An expression for how one of `members` may be written, to be put in parentheses."""
    found = []
    raw = members & RAW
    if raw:
        found.append(character_class(raw, ALL - RAW))
    short = "".join(escape for char, escape in SHORT_ESCAPES.items() if char in members)
    codes = _code_escapes(members & ESCAPED)
    escapes = [_class_of(short)] if short else []
    if codes:
        escapes.append("u" + (codes[0] if len(codes) == 1 else f"(?:{'|'.join(codes)})"))
    if escapes:
        found.append("\\\\" + (escapes[0] if len(escapes) == 1 else f"(?:{'|'.join(escapes)})"))
    return "|".join(found)


@lru_cache(maxsize=1024)
def is_single(members: CharSet) -> bool:
    """All of `members` are written in one way only: as themselves."""
    return members <= PLAIN


def character_class(members: CharSet, never: CharSet) -> str:
    """`[...]` or `[^...]` for `members`, whichever is shorter. `never` are always outside of it."""
    if len(members) == 1:
        return escaped(members.first())
    inside = _listed(members)
    outside = _listed(~members | never)
    return f"[{inside}]" if len(inside) <= len(outside) else f"[^{outside}]"


def _listed(members: CharSet) -> str:
    """Ranges in brackets; one that leads up to the surrogates goes on behind them."""
    gap = CharSet(SURROGATES)
    boundaries = members.boundaries
    if SURROGATES[0] in boundaries and SURROGATES[1] in boundaries:
        boundaries = tuple(point for point in boundaries if point not in gap.boundaries)
    found = []
    for start, stop in zip(boundaries[::2], boundaries[1::2], strict=True):
        first, last = _in_class(chr(start)), _in_class(chr(stop - 1))
        found.append(first if stop - start == 1 else first + ("-" if stop - start > 2 else "") + last)
    return "".join(found)


def _in_class(char: str) -> str:
    return "\\" + char if char in "\\]^[-&~/" else escaped(char) if char not in _META else char


def _class_of(chars: str) -> str:
    return escaped(chars) if len(chars) == 1 else "[" + "".join(map(_in_class, chars)) + "]"


def _code_escapes(members: CharSet) -> list[str]:
    """What may follow `\\u` for `members`: four digits, or those of a high surrogate, `\\u` and those of a low one."""
    found = []
    basic = tuple((members & BASIC).ranges())
    if basic:
        found.append(_digits(basic, 4))
    for lows, highs in _pairs((members - BASIC).ranges()).items():
        found.append(rf"{_digits(_joined(highs), 4)}\\u{_digits(lows, 4)}")
    return found


def _pairs(spans: Iterable[tuple[int, int]]) -> dict[Spans, list[tuple[int, int]]]:
    """The high surrogates, as ranges, by the low ones that may follow them."""
    lows: dict[int, list[tuple[int, int]]] = {}
    full: list[tuple[int, int]] = []
    for start, stop in spans:
        start, stop = start - 0x10000, stop - 0x10000
        first, last = -(-start // 0x400), stop // 0x400
        if first < last:
            full.append((0xD800 + first, 0xD800 + last))
        for low, high in ((start, min(stop, first * 0x400)), (max(start, last * 0x400), stop)):
            if low < high:
                span = (0xDC00 + low % 0x400, 0xDC00 + (high - 1) % 0x400 + 1)
                if span not in lows.setdefault(low // 0x400, []):
                    lows[low // 0x400].append(span)
    found: dict[Spans, list[tuple[int, int]]] = {((0xDC00, 0xE000),): full} if full else {}
    for high_index, ends in sorted(lows.items()):
        found.setdefault(tuple(ends), []).append((0xD800 + high_index, 0xD801 + high_index))
    return found


def _joined(spans: Iterable[tuple[int, int]]) -> Spans:
    found: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return tuple(found)


@lru_cache(maxsize=4096)
def _digits(spans: Spans, width: int) -> str:
    """An expression for the hexadecimal numbers of `width` digits in `spans`."""
    if spans == ((0, 16**width),):
        return "[0-9a-f]" + (f"{{{width}}}" if width > 1 else "")
    if width == 1:
        return _hex_class([digit for start, stop in spans for digit in range(start, stop)])
    size = 16 ** (width - 1)
    by_rest: dict[Spans, list[int]] = {}
    for digit in range(16):
        rest = tuple(_clipped(spans, digit * size, size))
        if rest:
            by_rest.setdefault(rest, []).append(digit)
    found = [_hex_class(digits) + _digits(rest, width - 1) for rest, digits in by_rest.items()]
    return found[0] if len(found) == 1 else f"(?:{'|'.join(found)})"


def _clipped(spans: Spans, base: int, size: int) -> Iterator[tuple[int, int]]:
    for start, stop in spans:
        start, stop = max(start - base, 0), min(stop - base, size)
        if start < stop:
            yield start, stop


def _hex_class(digits: list[int]) -> str:
    members = CharSet.of("".join(f"{digit:x}" for digit in digits))
    return members.first() if len(members) == 1 else f"[{_listed(members)}]"
