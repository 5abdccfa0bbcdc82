"""Writes a context-free grammar over characters for the grammar compiler (llguidance), with exactly the same words."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import GrammarError
from .expressions import (
    Chars,
    Choice,
    Expression,
    Name,
    Repeat,
    Sequence,
    is_nullable,
    nullable_rules,
    with_words,
    without_dead_ends,
)
from .terminals import MAX_TOTAL_POSITIONS, Conflicts, Regular


def follow(rules: Mapping[str, Expression], first: Mapping[str, int]) -> dict[str, int]:
    """For each terminal the union of `first` of all terminals that may come right after it.

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
            case Choice(options):
                return self._union(options)
            case Repeat(item):
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
            case Choice(options):
                for option in options:
                    self._spread(option, after)
            case Repeat(item, _, high):
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
        raise GrammarError(f"no text is a word of the grammar: the rule {root!r} never comes to an end")
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
            return Repeat(leaf, 0, 1) if is_nullable(terminal, set()) else leaf
        match expression:
            case Name(name):
                return Name(self._names.setdefault(name, f"r{len(self._names)}"))
            case Sequence(items):
                if len(items) > 2 and self._regular.weight(expression):  # what was found unfit is so by its end mostly
                    items = (Sequence(items[:-1]), items[-1])
                return Sequence(tuple(self._over_terminals(item) for item in items))
            case Choice(options):
                return Choice(tuple(self._over_terminals(option) for option in options))
            case Repeat(item, low, high):
                return Repeat(self._over_terminals(item), low, high)
        raise AssertionError("a character is always a terminal")

    def _terminal(self, expression: Expression) -> Expression | None:
        if isinstance(expression, Chars):
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
        if all(isinstance(terminal, Chars) for terminal in terminals):
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
        case Choice(options):
            return " | ".join(_text(option) for option in options)
        case Repeat(item, low, high):
            counts = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high))
            return _grouped(item) + (counts or f"{{{low},{'' if high is None else high}}}")
    raise AssertionError("a character is always a terminal")


def _grouped(expression: Expression) -> str:
    return _text(expression) if isinstance(expression, Name) else f"({_text(expression)})"


def _pattern(expression: Expression) -> str:
    """A regular expression, every character in hexadecimal."""
    match expression:
        case Chars(ranges):
            return "[" + "".join(map(_range, ranges)) + "]"
        case Sequence(items):
            return "".join(_pattern(item) for item in items)
        case Choice(options):
            return f"(?:{'|'.join(map(_pattern, options))})"
        case Repeat(item, low, high):
            return f"(?:{_pattern(item)}){{{low},{'' if high is None else high}}}"
    raise AssertionError("a terminal holds no names")


def _range(ends: tuple[int, int]) -> str:
    first, last = ends
    return f"\\x{{{first:x}}}" + (f"-\\x{{{last:x}}}" if last > first else "")
