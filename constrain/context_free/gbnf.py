"""Reads grammars in llama.cpp's notation (GBNF), and writes them in Lark's."""

from __future__ import annotations

import regex

from ..errors import GrammarError, GrammarTooComplexError
from .expressions import ANY_CHAR, Chars, Choice, Expression, Name, Repeat, Sequence, complement, to_chars
from .lark_writer import write_lark

MAX_CHARS = 1_000_000
MAX_REPETITION = 2_000

_BLANKS = regex.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_NAME = regex.compile(r"[A-Za-z0-9_-]+")
_DEFINES = regex.compile(r"(?:[ \t\r\n]+|#[^\n]*)*::=")
_COUNTS = regex.compile(r"\{\s*([0-9]{0,9})\s*(,?)\s*([0-9]{0,9})\s*\}")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-", "^": "^", "/": "/"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


def to_lark(text: str) -> str:
    """A grammar in Lark's notation with exactly the words of the GBNF grammar `text`.

    Raises:
        GrammarError: the text is no grammar, names tokens, or has no word; the message has the line.
    """
    if len(text) > MAX_CHARS:
        raise GrammarTooComplexError(f"the grammar is longer than {MAX_CHARS} characters")
    if "\0" in text:
        raise GrammarError("the grammar contains a NUL character")
    try:
        return write_lark(_Parser(text).rules())
    except RecursionError:
        raise GrammarTooComplexError("the grammar is nested too deeply") from None


def is_gbnf(text: str) -> bool:
    """Whether `text` is meant as GBNF rather than as Lark: its rules are written with `::=`."""
    return regex.match(r"(?:\s+|#[^\n]*|//[^\n]*)*[A-Za-z0-9_-]+\s*::=", text) is not None


class _Parser:
    """Recursive descent over the text. A rule goes on until the next `name ::=`, over as many lines as it takes."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._lines: dict[str, int] = {}

    def rules(self) -> dict[str, Expression]:
        """All rules by name, `root` first. Every name that is used is defined."""
        rules: dict[str, Expression] = {}
        self._skip()
        while self._at < len(self._text):
            name = _NAME.match(self._text, self._at)
            if name is None or _DEFINES.match(self._text, name.end()) is None:
                raise self._error(f"expected `name ::=`, got {self._here()}")
            if name[0] in rules:
                raise self._error(f"the rule {name[0]!r} is defined twice")
            defines = _DEFINES.match(self._text, name.end())
            assert defines is not None
            self._at = defines.end()
            rules[name[0]] = self._choice(depth=0)
        if "root" not in rules:
            raise GrammarError("the grammar has no rule `root`")
        for used, line in self._lines.items():
            if used not in rules:
                raise GrammarError(f"line {line}: there is no rule {used!r}")
        return {"root": rules["root"], **rules}

    def _choice(self, *, depth: int) -> Expression:
        options = [self._sequence(depth)]
        while self._take("|"):
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self, depth: int) -> Expression:
        items: list[Expression] = []
        while (item := self._item(depth)) is not None:
            while (counts := self._repetition()) is not None:
                item = Repeat(item, *counts)
            items.append(item)
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _item(self, depth: int) -> Expression | None:
        """The next item of a sequence; None at its end."""
        self._skip()
        char = self._text[self._at : self._at + 1]
        if char in ("", "|", ")"):
            if char == ")" and depth == 0:
                raise self._error("there is no `(` for this `)`")
            return None
        if char == '"':
            return self._string()
        if char == "[":
            return self._class()
        if char == "(":
            return self._group(depth)
        if char == ".":
            self._at += 1
            return ANY_CHAR
        if char in "<!":
            raise self._error("tokens cannot be named (`<...>`): write the text")
        name = _NAME.match(self._text, self._at)
        if name is None:
            raise self._error(f"expected a string, a class, a name or `(`, got {self._here()}")
        if _DEFINES.match(self._text, name.end()):
            if depth:
                raise self._error("a `(` is not closed before the next rule")
            return None
        self._lines.setdefault(name[0], self._line())
        self._at = name.end()
        return Name(name[0])

    def _group(self, depth: int) -> Expression:
        opened = self._error("this `(` is not closed")
        self._at += 1
        inner = self._choice(depth=depth + 1)
        if not self._take(")"):
            raise opened
        return inner

    def _string(self) -> Expression:
        opened = self._error("the string is not closed on its line")
        self._at += 1
        chars: list[Expression] = []
        while (char := self._text[self._at : self._at + 1]) != '"':
            if char in ("", "\n"):
                raise opened
            code = self._char()
            chars.append(to_chars([(code, code)]))
        self._at += 1
        return chars[0] if len(chars) == 1 else Sequence(tuple(chars))

    def _class(self) -> Chars:
        opened = self._error("the class is not closed on its line")
        self._at += 1
        negated = self._text.startswith("^", self._at)
        self._at += negated
        ranges: list[tuple[int, int]] = []
        while (char := self._text[self._at : self._at + 1]) != "]":
            if char in ("", "\n"):
                raise opened
            first = last = self._char()
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                if self._text[self._at : self._at + 1] in ("", "\n"):
                    raise opened
                last = self._char()
            if last < first:
                raise self._error("the range ends before it begins")
            ranges.append((first, last))
        self._at += 1
        chars = to_chars(ranges)
        return complement(chars) if negated else chars

    def _char(self) -> int:
        """The code of one character, which may be escaped."""
        char = self._text[self._at]
        if char != "\\":
            self._at += 1
            return ord(char)
        kind = self._text[self._at + 1 : self._at + 2]
        if kind in _HEX_DIGITS:
            digits = self._text[self._at + 2 : self._at + 2 + _HEX_DIGITS[kind]]
            if len(digits) < _HEX_DIGITS[kind] or not regex.fullmatch(r"[0-9A-Fa-f]+", digits):
                raise self._error(f"\\{kind} needs {_HEX_DIGITS[kind]} hexadecimal digits")
            code = int(digits, 16)
            if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                raise self._error(f"\\{kind}{digits} is no character")
            self._at += 2 + len(digits)
            return code
        if kind not in _ESCAPES or not kind:
            raise self._error(f"there is no escape \\{kind}")
        self._at += 2
        return ord(_ESCAPES[kind])

    def _repetition(self) -> tuple[int, int | None] | None:
        self._skip()
        char = self._text[self._at : self._at + 1]
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if char in simple:
            self._at += 1
            return simple[char]
        if char != "{":
            return None
        counts = _COUNTS.match(self._text, self._at)
        if counts is None or not (counts[1] or counts[3]) or (counts[3] and not counts[2]):
            raise self._error("expected {m}, {m,} or {m,n}")
        low = int(counts[1] or 0)
        high = int(counts[3]) if counts[3] else None if counts[2] else low
        if max(low, high or 0) > MAX_REPETITION:
            raise GrammarTooComplexError(f"line {self._line()}: more than {MAX_REPETITION} repetitions")
        if high is not None and high < low:
            raise self._error("the most repetitions are fewer than the least")
        self._at = counts.end()
        return low, high

    def _take(self, char: str) -> bool:
        self._skip()
        if not self._text.startswith(char, self._at):
            return False
        self._at += 1
        return True

    def _skip(self) -> None:
        blanks = _BLANKS.match(self._text, self._at)
        assert blanks is not None
        self._at = blanks.end()

    def _here(self) -> str:
        return repr(self._text[self._at : self._at + 20]) if self._at < len(self._text) else "the end"

    def _line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1

    def _error(self, reason: str) -> GrammarError:
        return GrammarError(f"line {self._line()}: {reason}")
