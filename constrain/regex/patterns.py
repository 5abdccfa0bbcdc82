"""Reads ECMA-262 regular expressions (as with the flag `u`, and what of other dialects has one clear meaning)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, NoReturn

from . import assertions
from .algebra import Node, chars
from .assertions import Boundary, Edge, Leaf, Look, NotRegularError, Tree, alternatives, repeated, sequenced
from .charsets import ALL, DIGITS, LINE_ENDS, SPACES, WORD, CharSet, ignoring_case, property_set
from .language import Language


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


class Cursor:
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


def class_escape(reader: Cursor) -> CharSet:
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


def character_escape(reader: Cursor, *, in_class: bool = False) -> str:
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
        reader.fail("the pattern ends in a backslash", start)
    if char.isascii() and char.isalnum():
        reader.fail(rf"unknown escape \{char}", start)
    return char


def _hex_character(reader: Cursor, found: re.Match[str], start: int) -> str:
    code = int(found[1] or found[2] or found[3], 16)
    if code > 0x10FFFF:
        reader.fail("no such code point", start)
    low = _LOW_SURROGATE.match(reader.text, reader.at)
    if found[2] and 0xD800 <= code < 0xDC00 and low is not None:
        reader.at = low.end()
        return chr(0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00)
    return chr(code)


def posix_class(reader: Cursor) -> CharSet | None:
    """Reads `[:name:]`, as it stands within a class; None if that is not what stands here."""
    found = _POSIX.match(reader.text, reader.at)
    if found is None or found[2] not in _POSIX_SETS:
        return None
    reader.at = found.end()
    return ~_POSIX_SETS[found[2]] if found[1] else _POSIX_SETS[found[2]]


MAX_LENGTH = 16_384
MAX_NESTING = 200
MAX_COUNT = 1_000_000_000
"""More repeats than this are refused."""

_COUNT = re.compile(r"\{(?:(\d+)(?:(,)(\d*))?|,(\d+))\}")
_NAME = re.compile(r"[^\W\d]\w*>|[$\w]+>")
_MODIFIERS = re.compile(r"([imsx]*)(?:-([imsx]*))?([:)])")


def parse_pattern(pattern: str) -> Language:
    """The texts in which `pattern` matches somewhere, as the JSON Schema keyword has it. Raises PatternError."""
    return _language(pattern, assertions.anywhere)


def parse_whole(pattern: str) -> Language:
    """The texts that `pattern` matches from start to end. Raises PatternError."""
    return _language(pattern, assertions.whole)


def parse_tree(pattern: str) -> Tree:
    """The pattern with its assertions, to be translated. Raises PatternError."""
    return _Parser(pattern).parse()


def _language(pattern: str, translate: Callable[[Tree], Node]) -> Language:
    tree = parse_tree(pattern)
    try:
        return Language(translate(tree))
    except NotRegularError as error:
        raise PatternError(str(error), 0, invalid=False) from error


@dataclass(frozen=True)
class _Flags:
    ignore_case: bool = False
    lines: bool = False
    dot_all: bool = False


@dataclass
class _Group:
    """A group that is still open: what closing it makes of its content, and the flags outside of it."""

    start: int
    flags: _Flags
    look: tuple[bool, bool] | None = None  # ahead, negated
    items: list[Tree] = field(default_factory=list)
    branches: list[Tree] = field(default_factory=list)

    def close(self) -> Tree:
        tree = alternatives([*self.branches, sequenced(self.items)])
        if self.look is None:
            return tree
        ahead, negated = self.look
        return Look(tree, ahead, negated)


class _Parser(Cursor):
    """One pass over a pattern. Open groups are on a stack of its own: a pattern may nest deeper than Python recurs."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_LENGTH:
            raise PatternError(f"it is longer than {MAX_LENGTH} characters", MAX_LENGTH, invalid=False)
        super().__init__(pattern)
        self.flags = _Flags()
        self.groups = [_Group(0, self.flags)]

    def parse(self) -> Tree:
        while self.at < len(self.text):
            self._term()
        if len(self.groups) > 1:
            self.fail("the group is not closed", self.groups[-1].start)
        return self.groups[0].close()

    def _term(self) -> None:
        group = self.groups[-1]
        char = self.text[self.at]
        if char == "|":
            self.at += 1
            group.branches.append(sequenced(group.items))
            group.items = []
        elif char == "(":
            self._open()
        elif char == ")":
            if len(self.groups) == 1:
                self.fail("there is no group to close")
            self.at += 1
            self.groups.pop()
            self.flags = group.flags
            self.groups[-1].items.append(self._quantified(group.close()))
        elif char in "*+?" or (char == "{" and _COUNT.match(self.text, self.at)):
            self.fail("nothing to repeat")
        else:
            group.items.append(self._quantified(self._atom()))

    def _open(self) -> None:
        """Reads the head of a group."""
        start = self.at
        if len(self.groups) > MAX_NESTING:
            self.fail(f"groups are nested deeper than {MAX_NESTING}", invalid=False)
        self.at += 1
        group = _Group(start, self.flags)
        if self.take("?"):
            if self.take("#"):
                self.at = self.text.find(")", self.at) + 1
                if not self.at:
                    self.fail("the comment is not closed", start)
                return
            for head, look in _LOOKS.items():
                if self.take(head):
                    group.look = look
                    break
            else:
                if not self._head(start):
                    return
        self.groups.append(group)

    def _head(self, start: int) -> bool:
        """Reads what follows `(?` of a group that is no look-around; False if no group follows."""
        if self.take("P=") or self.take("&") or self.take("P>") or self.take("R") or self.take("("):
            self.fail("references to groups are not supported", start, invalid=False)
        if self.take(">") or self.take("|"):
            self.fail("atomic groups are not supported", start, invalid=False)
        if self.take("P<") or self.take("<"):
            name = _NAME.match(self.text, self.at)
            if name is None:
                self.fail("a group needs a name of letters, digits and `_`", start)
            self.at = name.end()
            return True
        modifiers = _MODIFIERS.match(self.text, self.at)
        if modifiers is None:
            self.fail("unknown kind of group", start)
        self.at = modifiers.end()
        on, off, end = modifiers[1], modifiers[2] or "", modifiers[3]
        if "x" in on:
            self.fail("the flag x is not supported", start, invalid=False)
        self.flags = replace(
            self.flags,
            ignore_case=("i" in on or self.flags.ignore_case) and "i" not in off,
            lines=("m" in on or self.flags.lines) and "m" not in off,
            dot_all=("s" in on or self.flags.dot_all) and "s" not in off,
        )
        return end == ":"

    def _quantified(self, tree: Tree) -> Tree:
        """`tree` with the quantifier that follows it."""
        start = self.at
        if self.take("*"):
            low, high = 0, None
        elif self.take("+"):
            low, high = 1, None
        elif self.take("?"):
            low, high = 0, 1
        else:
            count = _COUNT.match(self.text, self.at)
            if count is None:
                return tree
            self.at = count.end()
            low, high = self._counts(count, start)
        if self.take("+"):
            self.fail("possessive quantifiers are not supported", start, invalid=False)
        self.take("?")  # lazy: the same language
        if self.peek() in ("*", "+", "?") or _COUNT.match(self.text, self.at):
            self.fail("nothing to repeat")
        return repeated(tree, low, high)

    def _counts(self, count: re.Match[str], start: int) -> tuple[int, int | None]:
        if any(len(digits or "") > 9 for digits in count.group(1, 3, 4)):
            self.fail(f"counts above {MAX_COUNT} are not supported", start, invalid=False)
        low = int(count[1] or 0)
        high = int(count[4]) if count[4] else int(count[3]) if count[3] else None if count[2] else low
        if high is not None and high < low:
            self.fail("the counts are out of order", start)
        return low, high

    def _atom(self) -> Tree:
        char = self.text[self.at]
        if char == "[":
            return Leaf(chars(self._class()))
        self.at += 1
        if char == "^" or char == "$":
            return Edge(char == "^", self.flags.lines)
        if char == ".":
            return Leaf(chars(ALL if self.flags.dot_all else ~LINE_ENDS))
        if char == "\\":
            return self._escape()
        return self._literal(char)

    def _literal(self, char: str) -> Tree:
        if self.flags.ignore_case:
            return Leaf(chars(ignoring_case(CharSet.of(char))))
        return Leaf(chars(CharSet.of(char)))

    def _escape(self) -> Tree:
        start = self.at - 1
        char = self.peek()
        if char in ("b", "B"):
            self.at += 1
            return Boundary(char == "B")
        if char in ("A", "z", "Z"):
            self.at += 1
            return Edge(char == "A")
        if char == "k" or (char and char in "123456789"):
            self.fail("references to groups are not supported", start, invalid=False)
        if char and char in CLASS_ESCAPES:
            return Leaf(chars(self._folded(class_escape(self))))
        return self._literal(character_escape(self))

    def _folded(self, members: CharSet) -> CharSet:
        return ignoring_case(members) if self.flags.ignore_case else members

    def _class(self) -> CharSet:
        """Reads `[...]`."""
        start = self.at
        self.at += 1
        negated = self.take("^")
        found: list[CharSet] = []
        while not self.take("]"):
            if self.at >= len(self.text):
                self.fail("the class is not closed", start)
            first = self._class_member()
            if self.peek() != "-" or self.peek(1) in ("]", ""):
                found.append(first)
                continue
            self.at += 1
            last = self._class_member()
            if len(first) != 1 or len(last) != 1:
                found += (first, CharSet.of("-"), last)
                continue
            low, high = ord(first.first()), ord(last.first())
            if high < low:
                self.fail("the range is out of order", start)
            found.append(CharSet.of((low, high + 1)))
        members = self._folded(CharSet.from_ranges(span for part in found for span in part.ranges()))
        return ~members if negated else members

    def _class_member(self) -> CharSet:
        posix = posix_class(self)
        if posix is not None:
            return posix
        char = self.text[self.at]
        self.at += 1
        if char != "\\":
            return CharSet.of(char)
        if self.peek() and self.peek() in CLASS_ESCAPES:
            return class_escape(self)
        if self.take("b"):
            return CharSet.of("\b")
        return CharSet.of(character_escape(self, in_class=True))


_LOOKS = {"=": (True, False), "!": (True, True), "<=": (False, False), "<!": (False, True)}
