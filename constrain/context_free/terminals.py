"""Cuts a grammar into terminals such that a lexer that always takes the longest match finds every derivation.

Let w be a word of terminal A after which some derivation goes on with the character c. A greedy lexer ends A there
unless some terminal B begins with wc. If there is no such B for any A, w and c, the lexer never misses a derivation.
So B is cut into its parts wherever that happens; single characters cannot be prolonged, which ends the cutting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .expressions import LAST_CHAR, CharRanges, Expression, Name, OneOf, Repetition, Sequence, names_in

MAX_POSITIONS = 160
"""Characters that a terminal may be made of, repetitions written out."""

MAX_TOTAL_POSITIONS = 3_000
"""Beyond that every terminal is a single character: the search for conflicts would take too long."""


class Regular:
    """Rules that are regular expressions once the rules they name are put in their place."""

    def __init__(self, rules: Mapping[str, Expression]) -> None:
        self._rules = rules
        self._weights: dict[str, int | None] = {}
        self._expanded: dict[str, Expression] = {}
        recursive = _recursive(rules)
        for name in recursive:
            self._weights[name] = None

    def weight(self, expression: Expression) -> int | None:
        """Counts the characters it is made of, repetitions written out; None if it is recursive or has too many."""
        total = 0
        match expression:
            case CharRanges():
                total = 1
            case Name(name):
                if name not in self._weights:
                    self._weights[name] = self.weight(self._rules[name])
                return self._weights[name]
            case Sequence(parts) | OneOf(parts):
                for part in parts:
                    weight = self.weight(part)
                    if weight is None:
                        return None
                    total += weight
            case Repetition(item, low, high):
                weight = self.weight(item)
                if weight is None:
                    return None
                total = weight * max(low, high or 1)
        return total if total <= MAX_POSITIONS else None

    def expand(self, expression: Expression) -> Expression:
        """The expression without names. It must have a weight."""
        match expression:
            case Name(name):
                if name not in self._expanded:
                    self._expanded[name] = self.expand(self._rules[name])
                return self._expanded[name]
            case Sequence(items):
                return Sequence(tuple(self.expand(item) for item in items))
            case OneOf(options):
                return OneOf(tuple(self.expand(option) for option in options))
            case Repetition(item, low, high):
                return Repetition(self.expand(item), low, high)
        return expression


def _recursive(rules: Mapping[str, Expression]) -> set[str]:
    """Rules that lead to a rule on a cycle."""
    uses = {name: names_in(body) for name, body in rules.items()}
    finite: set[str] = set()
    changed = True
    while changed:
        new = {name for name, used in uses.items() if name not in finite and used <= finite}
        changed = bool(new)
        finite |= new
    return set(rules) - finite


@dataclass
class _ByteAutomaton:
    """Positions of one expression (Glushkov): each is a set of atoms, as bits; `first`, `last` and `after` are bits of
    positions."""

    masks: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    first: int = 0
    last: int = 0
    nullable: bool = False


class Conflicts:
    """Finds terminals that a greedy lexer would prolong where another terminal should end."""

    def __init__(self, terminals: list[Expression]) -> None:
        self._atoms = _Atoms(terminals)
        self._terminals = terminals
        self._automata = [self._automaton(terminal) for terminal in terminals]
        self._masks: list[int] = []
        self._after: list[int] = []
        self._owner: list[int] = []
        self._first = 0
        for number, automaton in enumerate(self._automata):
            offset = len(self._masks)
            self._masks += automaton.masks
            self._after += [after << offset for after in automaton.after]
            self._owner += [number] * len(automaton.masks)
            self._first |= automaton.first << offset
        self._fitting: dict[int, int] = {}

    def first(self, number: int) -> int:
        """The atoms that terminal `number` may begin with."""
        automaton = self._automata[number]
        return _union(automaton.masks, automaton.first)

    def prolonged(self, number: int, follow: int) -> set[int]:
        """Terminals that go on after a word of terminal `number` with what may begin what `follow`s it."""
        automaton = self._automata[number]
        if not follow:
            return set()
        reached = [0] * len(
            automaton.masks
        )  # by position of this terminal: positions of all that the same text reaches
        waiting = []
        for position in _bits(automaton.first):
            reached[position] = self._first & self._fit(automaton.masks[position])
            waiting.append(position)
        while waiting:
            position = waiting.pop()
            following = _union(self._after, reached[position])
            for later in _bits(automaton.after[position]):
                new = following & self._fit(automaton.masks[later])
                if new & ~reached[later]:
                    reached[later] |= new
                    waiting.append(later)
        clashing = self._fit(self._atoms.blurred(follow))
        found = 0
        for position in _bits(automaton.last):
            found |= _union(self._after, reached[position]) & clashing
        return {self._owner[position] for position in _bits(found)}

    def _fit(self, mask: int) -> int:
        """Positions whose character may be one of the atoms in `mask`."""
        if mask not in self._fitting:
            self._fitting[mask] = sum(1 << position for position, other in enumerate(self._masks) if other & mask)
        return self._fitting[mask]

    def _automaton(self, expression: Expression) -> _ByteAutomaton:
        result = _ByteAutomaton()
        result.nullable, result.first, result.last = self._build(expression, result)
        return result

    def _build(self, expression: Expression, into: _ByteAutomaton) -> tuple[bool, int, int]:
        """Adds the positions of an expression; returns whether it is nullable, and its first and last positions."""
        match expression:
            case CharRanges():
                bit = 1 << len(into.masks)
                into.masks.append(self._atoms.mask(expression))
                into.after.append(0)
                return False, bit, bit
            case OneOf(options):
                parts = [self._build(option, into) for option in options]
                first = last = 0
                for part in parts:
                    first, last = first | part[1], last | part[2]
                return any(part[0] for part in parts), first, last
            case Sequence(items):
                return self._chain([self._build(item, into) for item in items], into)
            case Repetition(item, low, high):
                count = max(low, 1) if high is None else high
                parts = [self._build(item, into) for _ in range(count)]
                if high is None:
                    _link(into, parts[-1][2], parts[-1][1])
                optional = [(part[0] or number >= low, *part[1:]) for number, part in enumerate(parts)]
                return self._chain(optional, into)
        raise AssertionError("a terminal holds no names")

    def _chain(self, parts: list[tuple[bool, int, int]], into: _ByteAutomaton) -> tuple[bool, int, int]:
        nullable, first, last = True, 0, 0
        for part_nullable, part_first, part_last in parts:
            _link(into, last, part_first)
            first |= part_first if nullable else 0
            last = last | part_last if part_nullable else part_last
            nullable = nullable and part_nullable
        return nullable, first, last


class _Atoms:
    """The characters that no class tells apart, as bits of a number."""

    def __init__(self, terminals: list[Expression]) -> None:
        cuts = {0x80}
        for terminal in terminals:
            for chars in _classes(terminal):
                for first, last in chars.ranges:
                    cuts |= {first, last + 1}
        self._starts = sorted(cuts - {LAST_CHAR + 1})
        self._numbers = {start: number for number, start in enumerate(self._starts)}
        stops = [*self._starts[1:], LAST_CHAR + 1]
        self._leads = [_lead_bytes(start, stop - 1) for start, stop in zip(self._starts, stops, strict=True)]

    def mask(self, chars: CharRanges) -> int:
        mask = 0
        for first, last in chars.ranges:
            stop = self._numbers.get(last + 1, len(self._starts))
            mask |= (1 << stop) - (1 << self._numbers[first])
        return mask

    def blurred(self, mask: int) -> int:
        """Adds all atoms that begin with the same bytes: a lexer goes on into a character before it has seen it all."""
        leads = _union(self._leads, mask)
        return mask | sum(1 << number for number, other in enumerate(self._leads) if other & leads)


def _classes(expression: Expression) -> list[CharRanges]:
    match expression:
        case CharRanges():
            return [expression]
        case Sequence(parts) | OneOf(parts):
            return [chars for part in parts for chars in _classes(part)]
        case Repetition(item):
            return _classes(item)
    return []


def _lead_bytes(first: int, last: int) -> int:
    """The first bytes of the characters in a range, as bits; none for ASCII."""
    if last < 0x80:
        return 0
    low, high = chr(max(first, 0x80)), chr(min(last, LAST_CHAR))
    lead = [char.encode("utf-8", "surrogatepass")[0] for char in (low, high)]
    return (1 << (lead[1] + 1)) - (1 << lead[0])


def _link(into: _ByteAutomaton, last: int, first: int) -> None:
    for position in _bits(last):
        into.after[position] |= first


def _union(values: list[int], bits: int) -> int:
    union = 0
    for number in _bits(bits):
        union |= values[number]
    return union


def _bits(bits: int) -> list[int]:
    numbers = []
    while bits:
        low = bits & -bits
        numbers.append(low.bit_length() - 1)
        bits ^= low
    return numbers
