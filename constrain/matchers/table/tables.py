"""Makes tables of regular constraints: of small ones at once, of others when they come again."""

from __future__ import annotations

import math
import re
import threading
from re import _constants, _parser  # type: ignore[attr-defined]  # the standard library's own parser of patterns
from typing import Any

from ...errors import GrammarError
from ...lowered import Tabulate
from ...regex.automaton import Automaton, compile_parts, compile_words
from ...vocabulary.token_table import TokenTable
from ...vocabulary.trie import Level, build_trie
from ..interface import Grammar
from .matcher import RegularGrammar
from .rows import token_moves

MAX_LIGHT_CHARS = 4_096


def tabulate(job: Tabulate) -> Automaton:
    """Does the job. Raises GrammarError."""
    if job.parts:
        return compile_parts(job.parts)
    return compile_words(word.encode() for word in job.words)


def is_light(job: Tabulate) -> bool:
    """Whether the job is certain to take little time and memory: it needs no process of its own."""
    if job.parts:
        first = job.parts[0]
        return len(job.parts) == len(first.all) == 1 and not first.none and is_small(first.all[0])
    return sum(map(len, job.words)) <= MAX_LIGHT_CHARS


class RegularTables:
    """Puts automata and one vocabulary together. Thread-safe."""

    def __init__(self, tokens: TokenTable) -> None:
        self._tokens = tokens
        self._trie: tuple[Level, ...] | None = None
        self._lock = threading.Lock()

    def at_once(self, plain: Grammar) -> Grammar:
        """`plain` as a table, if that takes little; else as it is."""
        tabulation = plain.tabulation
        if tabulation is None or not is_light(tabulation.job):
            return plain
        try:
            return self.grammar(tabulate(tabulation.job), plain)
        except GrammarError as error:  # no reason not to follow it step by step
            tabulation.begin()
            tabulation.table.set_exception(error)
            return plain

    def grammar(self, automaton: Automaton, plain: Grammar) -> RegularGrammar:
        """The constraint `plain` as a table. Raises GrammarError."""
        vocabulary = self._tokens.vocabulary
        with self._lock:
            if self._trie is None:
                self._trie = build_trie(vocabulary.tokens, vocabulary.eos_ids)
        return RegularGrammar(automaton, token_moves(automaton, self._trie, vocabulary.size), self._tokens, plain=plain)


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
