"""Matches whole texts against regular expressions, in time linear in the text, with bounded automata."""

from __future__ import annotations

import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import NamedTuple

from llguidance import LLMatcher, LLParserLimits

from ...constrain.errors import GrammarError
from ...constrain.lower import lower
from ...constrain.matchers.lexer import Lexer
from ...constrain.spec import Regex
from ...constrain.vocabulary.token_table import TokenTable
from ...constrain.vocabulary.vocabulary import Vocabulary
from .errors import EngineError, RequestError

MAX_PATTERN_CHARS = 1024
MAX_MATCHED_CHARS = 32_768
"""Most characters of a text: one takes about a microsecond."""

MAX_NESTED_COUNTS = 1024
"""Largest product of nested counts: `(a{0,9}){0,9}` has 81. The number of states after a character grows with it, and
so does the time per character: to a second, without a limit."""

MAX_CLASSES = 48
"""Most classes of characters, such as `\\w`, `.` or `[^a]`, the parts that take longest to compile, which blocks all
other threads; this many take 20 ms at most."""

MAX_KEPT = 64

MAX_TRIES = 3
"""Attempts to match a text, each but the first with a new lexer."""

_TOKEN = re.compile(r"\\[xuUpP]\{[^}]*\}|\\.|\{[0-9]+(?:,[0-9]*)?\}|\[\^?\]?|.", re.DOTALL)
_COUNT = re.compile(r"[*+?]|\{([0-9]{1,9})(,?)([0-9]{0,9})\}")
_CLASS = re.compile(r"\\[wWdDsSpP]|\\.|\[\^|\.", re.DOTALL)
_CLASSES = frozenset((".", "[^", *(f"\\{letter}" for letter in "wWdDsSpP")))
_VERBOSE = re.compile(r"\(\?[a-zA-Z]*x")
_COMMENT = re.compile(r"#[^\n]*")

_CHUNK = 64
"""Bytes after which a match checks the time."""

_LIMITS = LLParserLimits(
    verbose_errors=False,
    initial_lexer_fuel=60_000,
    step_lexer_fuel=50_000,
    max_lexer_states=2_000,
    precompute_large_lexemes=False,
)


class Pattern:
    """A compiled regular expression, in the syntax of constraints. Not thread-safe.

    Raises:
        RequestError: the expression is invalid or too large.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        if len(source) > MAX_PATTERN_CHARS:
            raise _refused(source, f"it has more than {MAX_PATTERN_CHARS} characters")
        if nested_counts(source) > MAX_NESTED_COUNTS:
            raise _refused(source, f"counts in each other multiply to more than {MAX_NESTED_COUNTS}")
        if num_classes(source) > MAX_CLASSES:
            raise _refused(source, f"it has more than {MAX_CLASSES} classes of characters")
        try:
            grammar = lower(Regex(source)).source
        except (GrammarError, ValueError) as error:
            raise _refused(source, str(error)) from error
        make = partial(LLMatcher, _bytes_table().tokenizer, grammar, log_level=0, limits=_LIMITS)
        self._lexer = Lexer(make(), make)
        if self._lexer.start.is_error():
            raise _refused(source, self._lexer.start.get_error())

    @property
    def lexer(self) -> Lexer:
        """Returns a lexer with effort left: all texts share, and use up, its limit of effort."""
        if self._lexer.failed:
            self._lexer = self._lexer.renewed()
        return self._lexer

    def matches(self, text: str) -> bool:
        """Returns True if the pattern matches the whole of `text`.

        Raises:
            EngineError: the text is too long, or the pattern too complex for it.
        """
        return Matching(self, text).done_by(math.inf) is True


class Matching:
    """Match of a text against a pattern, in slices of time.

    Raises:
        EngineError: see `Pattern.matches`.
    """

    def __init__(self, pattern: Pattern, text: str) -> None:
        if len(text) > MAX_MATCHED_CHARS:
            message = f"a text of {len(text)} characters is compared with the pattern {_shown(pattern.source)}, but "
            raise EngineError(f"{message}{MAX_MATCHED_CHARS} is the limit", code="condition_too_complex", param="ops")
        self._pattern = pattern
        self._rest = list(text.encode(errors="replace"))
        self._found: bool | None = None
        self._num_tries = 0
        self.release: Callable[[], object] | None = None
        """Called when the match no longer holds the pattern, if set."""
        self._begin()

    def _begin(self) -> None:
        self._num_tries += 1
        self._lexer = self._pattern.lexer
        self._state = self._lexer.start.deep_copy()
        self._position = 0

    def done_by(self, until: float) -> bool | None:
        """Returns True if the whole text matches; None if that is not known at `until`, by `time.monotonic`."""
        while self._found is None:
            chunk = self._rest[self._position : self._position + _CHUNK]
            whole = self._state.try_consume_tokens(chunk) == len(chunk)
            if self._lexer.notices_failure(self._state):  # over this text, or another
                if self._num_tries < MAX_TRIES:
                    self._begin()
                    if time.monotonic() >= until:  # it may have compiled the pattern again
                        return None
                    continue
                message = f"the pattern {_shown(self._pattern.source)} is too complex for the text it is compared with"
                raise EngineError(message, code="condition_too_complex", param="ops")
            self._position += len(chunk)
            if not whole or self._position == len(self._rest):
                self._found = whole and self._state.is_accepting()
                del self._rest, self._pattern, self._lexer, self._state  # they take megabytes
            elif time.monotonic() >= until:
                return None
        return self._found


class PatternCache:
    """Cache of the most recently used patterns; one takes up to 6 MB after long texts. Not thread-safe."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, Pattern] = OrderedDict()

    def __contains__(self, source: str) -> bool:
        return source in self._found

    def get(self, source: str) -> Pattern:
        """Returns the pattern; compiles it, within 20 ms, if it is not cached. Raises RequestError."""
        found = self._found.get(source)
        if found is None:
            found = self._found[source] = Pattern(source)
            if len(self._found) > MAX_KEPT:
                self._found.popitem(last=False)
        self._found.move_to_end(source)
        return found


def num_classes(source: str) -> int:
    """Counts the classes of characters in a pattern: 3 for `\\w+\\.[^.]*.`, in which one dot is of a class."""
    return sum(token.group() in _CLASSES for token in _CLASS.finditer(source))


class _Item(NamedTuple):
    """A part of a pattern: bounds of its length in characters, and the largest product of its nested counts."""

    low: float = 0
    high: float = 0
    counts: int = 1

    def times(self, low: int, high: float) -> _Item:
        fixed = low == high and self.low == self.high  # of fixed length, so that there is only one way to match it
        counts = self.counts if fixed else self.counts * max(int(low if high == math.inf else high), 1)
        return _Item(self.low * low, self.high * high if self.high else 0, counts)


def nested_counts(source: str) -> int:
    """Returns the largest product of nested counts: 81 for `(a{0,9}){0,9}`, 1 for `a{9}b{0,9}`."""
    largest = 1
    groups: list[tuple[list[_Item], list[_Item]]] = [([], [])]  # the open ones: their branches, the last one's items
    for token in _tokens(source):
        branches, items = groups[-1]
        if token == "(":
            groups.append(([], []))
        elif token == "|":
            branches.append(_joined(items))
            items.clear()
        elif token == ")" and len(groups) > 1:
            groups.pop()
            branches.append(_joined(items))
            low, high = min(each.low for each in branches), max(each.high for each in branches)
            groups[-1][1].append(_Item(low, high, max(each.counts for each in branches)))
        elif (count := _COUNT.fullmatch(token)) is None:
            items += [] if token == " " else [_Item(1, 1)]
        elif items:
            before = items[-1]
            items[-1] = before.times(*_bounds(count))
            if items[-1].counts > before.counts > 1:
                largest = max(largest, items[-1].counts)
    return largest


def _joined(items: list[_Item]) -> _Item:
    counts = max((item.counts for item in items), default=1)
    return _Item(sum(item.low for item in items), sum(item.high for item in items), counts)


def _bounds(count: re.Match[str]) -> tuple[int, float]:
    """Returns the minimum and maximum of a repetition."""
    token, low, comma, high = count.group(0, 1, 2, 3)
    if low is None:
        return int(token == "+"), 1 if token == "?" else math.inf
    return int(low), int(high) if high else math.inf if comma else int(low)


def _tokens(source: str) -> Iterator[str]:
    """Yields parentheses, quantifiers, and items for a character. White space and comments may stand for none."""
    if _VERBOSE.search(source):
        source = _COMMENT.sub(" ", source)
    depth = 0  # of nested classes
    for match in _TOKEN.finditer(source):
        token = match.group()
        if token.startswith("["):
            depth += 1
        elif token == "]" and depth:
            depth -= 1
            if not depth:
                yield "."
        elif not depth:
            yield " " if token.isspace() else token


@cache
def _bytes_table() -> TokenTable:
    tokens = (*(bytes([byte]) for byte in range(256)), None)
    return TokenTable(Vocabulary(tokens, (256,), 257, lambda text: list(text.encode())))


def _refused(source: str, reason: str) -> RequestError:
    message = f"the pattern {_shown(source)} cannot be compiled: {' '.join(reason.split())[:300]}"
    return RequestError(message, code="invalid_pattern", param="ops")


def _shown(source: str) -> str:
    return repr(source if len(source) <= 100 else source[:100] + "...")
