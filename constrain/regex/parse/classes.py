"""Reads the escapes and named classes of regular expressions."""

from __future__ import annotations

import re
from typing import Final, NoReturn

from ..charsets import DIGITS, SPACES, WORD, CharSet, property_set


class PatternError(ValueError):
    """A pattern cannot be used.

    position    where in the pattern, in characters
    invalid     it is not a regular expression; else it is one, but not of a kind that can be enforced
    """

    def __init__(self, reason: str, position: int, *, invalid: bool) -> None:
        super().__init__(f"{reason} (at character {position})")
        self.reason = reason
        self.position = position
        self.invalid = invalid


class Reader:
    """A position in a text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def peek(self, ahead: int = 0) -> str:
        """The character here, or `ahead` of here; "" past the end."""
        return self.text[self.at + ahead : self.at + ahead + 1]

    def take(self, expected: str) -> bool:
        """Moves past `expected` if it stands here."""
        if self.text.startswith(expected, self.at):
            self.at += len(expected)
            return True
        return False

    def fail(self, reason: str, position: int | None = None, *, invalid: bool = True) -> NoReturn:
        """Raises PatternError."""
        raise PatternError(reason, self.at if position is None else position, invalid=invalid)


CLASS_ESCAPES: Final = "dDwWsSpP"
"""The letters that name a set of characters after a backslash."""

_CONTROLS: Final = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}
_SETS: Final = {"d": DIGITS, "w": WORD, "s": SPACES}
_PROPERTY = re.compile(r"\{(\^?)([A-Za-z0-9_ =-]+)\}|([A-Z])")
_HEX = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|[ux]\{([0-9A-Fa-f]+)\}")
_LOW_SURROGATE = re.compile(r"\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})")
_OCTAL = re.compile(r"[0-3]?[0-7]{1,2}")
_POSIX = re.compile(r"\[:(\^?)([a-z]+):\]")
_POSIX_SETS: Final = {
    "alnum": CharSet.of((0x30, 0x3A), (0x41, 0x5B), (0x61, 0x7B)),
    "alpha": CharSet.of((0x41, 0x5B), (0x61, 0x7B)),
    "ascii": CharSet.of((0, 0x80)),
    "blank": CharSet.of(" \t"),
    "cntrl": CharSet.of((0, 0x20), (0x7F, 0x80)),
    "digit": DIGITS,
    "graph": CharSet.of((0x21, 0x7F)),
    "lower": CharSet.of((0x61, 0x7B)),
    "print": CharSet.of((0x20, 0x7F)),
    "punct": CharSet.of((0x21, 0x30), (0x3A, 0x41), (0x5B, 0x61), (0x7B, 0x7F)),
    "space": CharSet.of((0x09, 0x0E), (0x20, 0x21)),
    "upper": CharSet.of((0x41, 0x5B)),
    "word": WORD,
    "xdigit": CharSet.of((0x30, 0x3A), (0x41, 0x47), (0x61, 0x67)),
}


def class_escape(reader: Reader) -> CharSet:
    """Reads one of CLASS_ESCAPES and what belongs to it."""
    letter = reader.peek()
    reader.at += 1
    if letter not in "pP":
        members = _SETS[letter.lower()]
        return members if letter.islower() else ~members
    found = _PROPERTY.match(reader.text, reader.at)
    if found is None:
        reader.fail(rf"\{letter} needs a property in braces")
    try:
        members = property_set(found[2] or found[3])
    except ValueError as error:
        raise PatternError(str(error), reader.at, invalid=True) from error
    reader.at = found.end()
    return members if (letter == "p") != bool(found[1]) else ~members


def character_escape(reader: Reader, *, in_class: bool = False) -> str:
    """Reads the escape of one character, past its backslash."""
    start = reader.at - 1
    found = _HEX.match(reader.text, reader.at)
    if found is not None:
        reader.at = found.end()
        return _hex_character(reader, found, start)
    octal = _OCTAL.match(reader.text, reader.at)
    if octal is not None and (in_class or octal[0].startswith("0")):
        reader.at = octal.end()
        return chr(int(octal[0], 8))
    char = reader.peek()
    reader.at += 1
    if char == "c" and reader.peek().isascii() and reader.peek().isalpha():
        reader.at += 1
        return chr(ord(reader.text[reader.at - 1]) % 32)
    if char in _CONTROLS:
        return _CONTROLS[char]
    if not char:
        reader.fail("a backslash stands at the end", start)
    if char.isascii() and char.isalnum():
        reader.fail(rf"there is no escape \{char}", start)
    return char


def _hex_character(reader: Reader, found: re.Match[str], start: int) -> str:
    code = int(found[1] or found[2] or found[3], 16)
    if code > 0x10FFFF:
        reader.fail("there is no such code point", start)
    low = _LOW_SURROGATE.match(reader.text, reader.at)
    if found[2] and 0xD800 <= code < 0xDC00 and low is not None:
        reader.at = low.end()
        return chr(0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00)
    return chr(code)


def posix_class(reader: Reader) -> CharSet | None:
    """Reads `[:name:]`, as it stands within a class; None if that is not what stands here."""
    found = _POSIX.match(reader.text, reader.at)
    if found is None or found[2] not in _POSIX_SETS:
        return None
    reader.at = found.end()
    return ~_POSIX_SETS[found[2]] if found[1] else _POSIX_SETS[found[2]]
