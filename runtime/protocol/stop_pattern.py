"""Stop patterns, which end a text: compiled once, with a search in time linear in the text.

A possible start of a match is represented by what may follow from there, a derivative of the pattern (Brzozowski,
Derivatives of regular expressions, JACM 11(4), 1964). Of several starts with the same derivative, only the first
counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from ...constrain.regex.algebra import ANY, EMPTY, Concat, Intersection, Node, Union, parts
from ...constrain.regex.assertions import NotRegularError, Sought, sought
from ...constrain.regex.decisions import Derivatives, OutOfBudgetError
from ...constrain.regex.patterns import PatternError, parse_tree
from .errors import EngineError, RequestError

WINDOW = 4096
"""Most characters of a match."""

MAX_BEHIND = 8
"""Most look-behinds of several characters."""

MAX_STEPS = 300
"""Limit of a pattern's translation: a few milliseconds."""

BURST = 50_000
RATE = 25_000
"""Units of effort that searches may take at once, and per second after that. A unit is about a microsecond."""

SLOW_S = 0.0005
"""A derivative that took longer costs what it took: its effort is an estimate."""

MAX_OPTIONAL = 64
"""Parts one after another that may all be missing: a derivative begins with each of them, and holds all that follow."""

_LIVE_PER_UNIT = 3
_MAX_KNOWN = 50_000


class StopMatch(NamedTuple):
    """A stop in a text, by character offsets from its beginning."""

    start: int
    stop: int
    text: str


class SearchBudget(Derivatives):
    """Budget of effort for all searches of one key, which refills with time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(BURST)
        self._clock = clock
        self._at = clock()

    def step(self, node: Node, char: str) -> Node:
        began = time.perf_counter()
        try:
            return super().step(node, char)
        finally:
            if (spent_s := time.perf_counter() - began) > SLOW_S:
                self.remaining -= int(spent_s * 1e6)

    def spend(self, units: int) -> None:
        if units > self.remaining:
            before, self._at = self._at, self._clock()
            self.remaining = min(BURST, self.remaining + int((self._at - before) * RATE))
            if len(self._known) > _MAX_KNOWN:
                self._known.clear()
        if units > self.remaining:
            raise OutOfBudgetError
        self.remaining -= units


class StopPattern:
    """A compiled `stop_regex`, in the syntax of constraints. Immutable: threads may share it.

    Assertions see the whole text: `$` is its end, and `END\\b` matches once a character follows that is in no word.

    Raises:
        RequestError: the pattern is invalid, cannot be searched for in linear time, or matches the empty text.
    """

    def __init__(self, source: str) -> None:
        try:
            self.parts = tuple(sought(parse_tree(source), MAX_STEPS))
        except (PatternError, NotRegularError) as error:
            raise _refused(str(error)) from error
        if any(node.nullable for part in self.parts for node in part.match.nodes):
            raise _refused("it matches the empty text and would end every answer")
        if any(_num_optional(node) > MAX_OPTIONAL for part in self.parts for node in part.match.nodes):
            raise _refused(f"it has more than {MAX_OPTIONAL} optional parts one after another")
        self.behind = tuple({node for part in self.parts for node, _ in part.behind})
        """Languages that the text before a match is tested against."""
        if len(self.behind) > MAX_BEHIND:
            raise _refused(f"it looks behind in more than {MAX_BEHIND} ways")


class _Begun(NamedTuple):
    """A possible start of a match of a part of the pattern, and the rests that would complete it."""

    start: int
    part: Sought
    rest: Node


class _Ended(NamedTuple):
    """A match, on condition that the text after it matches one of `follow`."""

    start: int
    stop: int
    follow: Node


class PatternSearch:
    """Searches for a pattern in a text that arrives character by character. Not thread-safe.

    The match that begins first counts, and of those the shortest: `a+` ends at the first a.
    """

    def __init__(self, pattern: StopPattern, budget: Derivatives) -> None:
        self._parts = pattern.parts
        self._budget = budget
        self._behind = {node: node for node in pattern.behind}
        self._begun: list[_Begun] = []  # by their start
        self._ended: list[_Ended] = []
        self._found: tuple[int, int] | None = None  # unless one of these comes before it
        self._text = ""  # from the character before the first start on, at the latest
        self._seen = 0

    @property
    def live_from(self) -> int:
        """First offset at which a match may begin."""
        starts = [self._begun[0].start] if self._begun else []
        starts += [ended.start for ended in self._ended]
        return min(starts, default=self._seen if self._found is None else self._found[0])

    def advance(self, char: str) -> StopMatch | None:
        """Reads a character; returns the match that ends the text, once no other can come before it.

        Raises:
            EngineError: the searches of the key have taken too much time.
        """
        try:
            if not (self._begun or self._ended or self._behind) and self._is_idle(char):
                self._seen, self._text = self._seen + 1, char
                return None
            self._advance(char)
        except OutOfBudgetError as error:
            message = "the searches for stop_regex have taken more time than a key has: use a simpler pattern"
            raise EngineError(message, code="stop_regex_timeout", param="stop_regex") from error
        if self._begun or self._ended:
            return None
        found, self._found = self._found, None
        match = self._match(found)
        self._text = char
        return match

    def finish(self) -> StopMatch | None:
        """Returns the match that ends the text, given that no more characters follow."""
        ended = [(ended.start, ended.stop) for ended in self._ended if ended.follow.nullable]
        return self._match(min(ended, default=self._found))

    def _is_idle(self, char: str) -> bool:
        """Returns True if no match begins with `char`. Raises OutOfBudgetError."""
        last = self._text[-1:]
        return all(self._budget.step(part.match.after(last), char) is EMPTY for part in self._parts)

    def _advance(self, char: str) -> None:
        """Reads a character. Raises OutOfBudgetError."""
        begun = self._begun if self._found is not None else [*self._begun, *self._begin(self._text[-1:])]
        self._seen += 1
        if len(self._text) > 2 * WINDOW:
            self._text = self._text[-WINDOW:]  # with `char`, one character before the first start that may be left
        self._text += char
        self._budget.spend((len(begun) + len(self._ended)) // _LIVE_PER_UNIT)
        oldest = self._seen - WINDOW
        ended = [
            _Ended(start, stop, rest)
            for start, stop, follow in self._ended
            if (rest := self._budget.step(follow, char)) is not EMPTY and start >= oldest
        ]
        kept: dict[tuple[int, Node], _Begun] = {}
        for start, part, before in begun:
            rest = self._budget.step(before, char)
            if rest is EMPTY or start < oldest:
                continue
            if rest.nullable:
                ended.append(_Ended(start, self._seen, ANY if part.follow is None else part.follow.after(char)))
            kept.setdefault((id(part), rest), _Begun(start, part, rest))
        for node, before in self._behind.items():
            self._behind[node] = self._budget.step(before, char)
        decided = [(one.start, one.stop) for one in ended if _is_any(one.follow)]
        self._found = found = min([*decided, *([] if self._found is None else [self._found])], default=None)
        self._begun, self._ended = list(kept.values()), ended
        if found is not None:
            self._begun = [one for one in self._begun if one.start < found[0]]
            self._ended = [one for one in ended if (one.start, one.stop) < found]

    def _begin(self, before: str) -> list[_Begun]:
        behind = self._behind
        return [
            _Begun(self._seen, part, part.match.after(before))
            for part in self._parts
            if all(behind[node].nullable != negated for node, negated in part.behind)
        ]

    def _match(self, found: tuple[int, int] | None) -> StopMatch | None:
        if found is None:
            return None
        before = self._seen - len(self._text)
        return StopMatch(*found, self._text[found[0] - before : found[1] - before])


def _num_optional(node: Node) -> int:
    """Returns how many parts one after another may all be missing, at most, anywhere in `node`."""
    most, pending, seen = 0, [node], {node}
    while pending:
        top = pending.pop()
        if isinstance(top, Concat):
            runs = (len(list(run)) for nullable, run in groupby(top.items, attrgetter("nullable")) if nullable)
            most = max(most, *runs, 0)
        pending += (new := set(parts(top)) - seen)
        seen |= new
    return most


def _is_any(node: Node) -> bool:
    """Returns True if `node` obviously matches every text."""
    match node:
        case Concat(items=items):
            return items[-1] is ANY and all(item.nullable for item in items)
        case Union(items=items):
            return any(_is_any(item) for item in items)
        case Intersection(items=items):
            return all(_is_any(item) for item in items)
    return node is ANY


def _refused(reason: str) -> RequestError:
    return RequestError(f"stop_regex cannot be used: {reason}", param="stop_regex")
