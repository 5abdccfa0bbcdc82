"""Reads grammars in llama.cpp's notation (GBNF), and writes them in Lark's."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..errors import GrammarError, GrammarTooComplexError, quoted
from .expressions import (
    ANY_CHAR,
    CharRanges,
    Expression,
    Name,
    OneOf,
    Repetition,
    Sequence,
    complement,
    is_nullable,
    nullable_rules,
    to_chars,
    with_words,
    without_dead_ends,
)
from .terminals import MAX_TOTAL_POSITIONS, Conflicts, Regular

MAX_CHARS = 1_000_000
MAX_REPETITION = 2_000

# What may be long is possessive: a text that fails to match is not looked at from each of its places again.
_BLANKS = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+)*+")
_NAME = re.compile(r"[A-Za-z0-9_-]++")
_DEFINES = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+)*+::=")
_FIRST_RULE = re.compile(r"(?:\s++|#[^\n]*+|//[^\n]*+)*+[A-Za-z0-9_-]++\s*+::=")
_COUNTS = re.compile(r"\{\s*([0-9]{0,9})\s*(,?)\s*([0-9]{0,9})\s*\}")
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
        return write_lark(_GbnfParser(text).rules())
    except RecursionError:
        raise GrammarTooComplexError("the grammar is nested too deeply") from None


def is_gbnf(text: str) -> bool:
    """Returns whether `text` is meant as GBNF rather than as Lark: its rules are written with `::=`.

    Takes time linear in the text.
    """
    return _FIRST_RULE.match(text) is not None


class _GbnfParser:
    """Recursive descent over the text. A rule goes on until the next `name ::=`, over as many lines as it takes."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._used: dict[str, int] = {}  # where each name is used first

    def rules(self) -> dict[str, Expression]:
        """All rules by name, `root` first. Every name that is used is defined."""
        rules: dict[str, Expression] = {}
        self._skip()
        while self._at < len(self._text):
            name = _NAME.match(self._text, self._at)
            if name is None or _DEFINES.match(self._text, name.end()) is None:
                raise self._error(f"expected `name ::=`, got {self._here()}")
            if name[0] in rules:
                raise self._error(f"the rule {quoted(name[0])} is defined twice")
            defines = _DEFINES.match(self._text, name.end())
            assert defines is not None
            self._at = defines.end()
            rules[name[0]] = self._choice(depth=0)
        if "root" not in rules:
            raise GrammarError("the grammar has no rule `root`")
        for used, place in self._used.items():
            if used not in rules:
                raise self._error(f"there is no rule {quoted(used)}", place)
        return {"root": rules["root"], **rules}

    def _choice(self, *, depth: int) -> Expression:
        options = [self._sequence(depth)]
        while self._take("|"):
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else OneOf(tuple(options))

    def _sequence(self, depth: int) -> Expression:
        items: list[Expression] = []
        while (item := self._item(depth)) is not None:
            while (counts := self._repetition()) is not None:
                item = Repetition(item, *counts)
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
        self._used.setdefault(name[0], self._at)
        self._at = name.end()
        return Name(name[0])

    def _group(self, depth: int) -> Expression:
        opened = self._at
        self._at += 1
        inner = self._choice(depth=depth + 1)
        if not self._take(")"):
            raise self._error("this `(` is not closed", opened)
        return inner

    def _string(self) -> Expression:
        opened = self._at
        self._at += 1
        chars: list[Expression] = []
        while (char := self._text[self._at : self._at + 1]) != '"':
            if char in ("", "\n"):
                raise self._error("the string is not closed on its line", opened)
            code = self._char()
            chars.append(to_chars([(code, code)]))
        self._at += 1
        return chars[0] if len(chars) == 1 else Sequence(tuple(chars))

    def _class(self) -> CharRanges:
        opened = self._at
        self._at += 1
        negated = self._text.startswith("^", self._at)
        self._at += negated
        ranges: list[tuple[int, int]] = []
        while (char := self._text[self._at : self._at + 1]) != "]":
            if char in ("", "\n"):
                raise self._error("the class is not closed on its line", opened)
            first = last = self._char()
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                if self._text[self._at : self._at + 1] in ("", "\n"):
                    raise self._error("the class is not closed on its line", opened)
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
            if len(digits) < _HEX_DIGITS[kind] or not re.fullmatch(r"[0-9A-Fa-f]+", digits):
                raise self._error(f"\\{kind} needs {_HEX_DIGITS[kind]} hexadecimal digits")
            code = int(digits, 16)
            if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                raise self._error(f"\\{kind}{digits} is not a character")
            self._at += 2 + len(digits)
            return code
        if kind not in _ESCAPES or not kind:
            raise self._error(f"unknown escape \\{kind}")
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
            raise self._error("the highest number of repetitions is below the lowest")
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

    def _line(self, place: int | None = None) -> int:
        return self._text.count("\n", 0, self._at if place is None else place) + 1

    def _error(self, reason: str, place: int | None = None) -> GrammarError:
        return GrammarError(f"line {self._line(place)}: {reason}")


def follow(rules: Mapping[str, Expression], first: Mapping[str, int]) -> dict[str, int]:
    """Finds for each terminal the union of `first` of all terminals that may come right after it.

    Names in the rules are those of rules or of terminals; `first` has a set, as bits, for each terminal.
    """
    return _Search(rules, first).run()


class _Search:
    """Two fixed points: what each name begins with, then what comes after it."""

    def __init__(self, rules: Mapping[str, Expression], first: Mapping[str, int]) -> None:
        self._rules = rules
        self._terminals = first
        self._nullable = nullable_rules(rules)
        self._first = {**dict.fromkeys(rules, 0), **first}
        self._after = dict.fromkeys(self._first, 0)

    def run(self) -> dict[str, int]:
        changed = True
        while changed:
            grown = {name: self._begins(body) for name, body in self._rules.items()}
            changed = any(self._first[name] != begins for name, begins in grown.items())
            self._first.update(grown)
        changed = True
        while changed:
            before = dict(self._after)
            for name, body in self._rules.items():
                self._spread(body, self._after[name])
            changed = before != self._after
        return {name: self._after[name] for name in self._terminals}

    def _begins(self, expression: Expression) -> int:
        match expression:
            case Name(name):
                return self._first[name]
            case OneOf(options):
                return self._union(options)
            case Repetition(item):
                return self._begins(item)
            case Sequence(items):
                stop = next((place for place, item in enumerate(items, 1) if not self._skippable(item)), len(items))
                return self._union(items[:stop])
        return 0

    def _union(self, parts: tuple[Expression, ...]) -> int:
        union = 0
        for part in parts:
            union |= self._begins(part)
        return union

    def _skippable(self, expression: Expression) -> bool:
        return is_nullable(expression, self._nullable)

    def _spread(self, expression: Expression, after: int) -> None:
        """Notes what comes after the names in an expression that `after` comes after."""
        match expression:
            case Name(name):
                self._after[name] |= after
            case OneOf(options):
                for option in options:
                    self._spread(option, after)
            case Repetition(item, _, high):
                self._spread(item, after if high in (0, 1) else after | self._begins(item))
            case Sequence(items):
                for item in reversed(items):
                    self._spread(item, after)
                    after = self._begins(item) | (after if self._skippable(item) else 0)


def write_lark(rules: Mapping[str, Expression]) -> str:
    """The grammar in Lark's notation. The first rule is where texts begin.

    Raises:
        GrammarError: no text is a word of it.
    """
    root = next(iter(rules))
    known = with_words(rules)
    if root not in known:
        raise GrammarError(f"the grammar matches no text: the rule {quoted(root)} never ends")
    cleaned = {name: without_dead_ends(body, known) for name, body in rules.items() if name in known}
    lexed = _lexed(cleaned, root)
    lines = [f"start: {next(iter(lexed.rules))}"]
    lines += [f"{name}: {_text(body)}" for name, body in lexed.rules.items()]
    for terminal, name in lexed.terminals.items():
        not_empty = " & /(?s:.+)/" if is_nullable(terminal, set()) else ""
        lines.append(f"{name}: /{_pattern(terminal)}/{not_empty}")
    return "\n".join(lines) + "\n"


class _Lexed:
    """A grammar over terminals: `rules` by new names (r0, r1, ...) hold names of rules and of `terminals` (T0, ...).

    What is a regular expression becomes a terminal, unless it is in `split`, or (with `single`) has several characters.
    A terminal never matches the empty text: one that could is optional.
    """

    def __init__(self, source: Mapping[str, Expression], root: str, split: set[Expression], *, single: bool) -> None:
        self.rules: dict[str, Expression] = {}
        self.terminals: dict[Expression, str] = {}
        self._regular = Regular(source)
        self._split = split
        self._single = single
        self._names = {root: "r0"}
        waiting = [root]
        while waiting:
            old = waiting.pop()
            known = len(self._names)
            self.rules[self._names[old]] = self._over_terminals(source[old])
            waiting += list(self._names)[known:]

    def weight(self) -> int:
        """The characters that all terminals are made of."""
        return sum(self._regular.weight(terminal) or 0 for terminal in self.terminals)

    def _over_terminals(self, expression: Expression) -> Expression:
        terminal = self._terminal(expression)
        if terminal is not None:
            leaf = Name(self.terminals.setdefault(terminal, f"T{len(self.terminals)}"))
            return Repetition(leaf, 0, 1) if is_nullable(terminal, set()) else leaf
        match expression:
            case Name(name):
                return Name(self._names.setdefault(name, f"r{len(self._names)}"))
            case Sequence(items):
                if len(items) > 2 and self._regular.weight(expression):  # what was found unfit is so by its end mostly
                    items = (Sequence(items[:-1]), items[-1])
                return Sequence(tuple(self._over_terminals(item) for item in items))
            case OneOf(options):
                return OneOf(tuple(self._over_terminals(option) for option in options))
            case Repetition(item, low, high):
                return Repetition(self._over_terminals(item), low, high)
        raise AssertionError("a character is always a terminal")

    def _terminal(self, expression: Expression) -> Expression | None:
        if isinstance(expression, CharRanges):
            return expression
        if self._single or not self._regular.weight(expression):
            return None
        expanded = self._regular.expand(expression)
        return None if expanded in self._split else expanded


def _lexed(source: Mapping[str, Expression], root: str) -> _Lexed:
    """The grammar with terminals as large as can be without changing its words."""
    split: set[Expression] = set()
    single = False
    while True:
        lexed = _Lexed(source, root, split, single=single)
        terminals = list(lexed.terminals)
        if all(isinstance(terminal, CharRanges) for terminal in terminals):
            return lexed
        if lexed.weight() > MAX_TOTAL_POSITIONS:
            single = True
            continue
        conflicts = Conflicts(terminals)
        first = {f"T{number}": conflicts.first(number) for number in range(len(terminals))}
        after = follow(lexed.rules, first)
        clashing = {
            other for number in range(len(terminals)) for other in conflicts.prolonged(number, after[f"T{number}"])
        }
        if not clashing:
            return lexed
        split |= {terminals[number] for number in clashing}


def _text(expression: Expression) -> str:
    match expression:
        case Name(name):
            return name
        case Sequence(items):
            return " ".join(_grouped(item) for item in items) or '""'
        case OneOf(options):
            return " | ".join(_text(option) for option in options)
        case Repetition(item, low, high):
            counts = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high))
            return _grouped(item) + (counts or f"{{{low},{'' if high is None else high}}}")
    raise AssertionError("a character is always a terminal")


def _grouped(expression: Expression) -> str:
    return _text(expression) if isinstance(expression, Name) else f"({_text(expression)})"


def _pattern(expression: Expression) -> str:
    """A regular expression, every character in hexadecimal."""
    match expression:
        case CharRanges(ranges):
            return "[" + "".join(map(_range, ranges)) + "]"
        case Sequence(items):
            return "".join(_pattern(item) for item in items)
        case OneOf(options):
            return f"(?:{'|'.join(map(_pattern, options))})"
        case Repetition(item, low, high):
            return f"(?:{_pattern(item)}){{{low},{'' if high is None else high}}}"
    raise AssertionError("a terminal holds no names")


def _range(ends: tuple[int, int]) -> str:
    first, last = ends
    return f"\\x{{{first:x}}}" + (f"-\\x{{{last:x}}}" if last > first else "")
