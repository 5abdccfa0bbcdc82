"""Grammar state that excludes repeated elements of arrays and repeated keys of objects."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...json_text.reader import (
    LITERALS,
    DistinctPaths,
    DuplicateError,
    Frame,
    Mode,
    Reader,
    Scan,
    Seen,
    Value,
    all_seen,
    is_seen,
    number_value,
)
from ...vocabulary.element_tokens import Row
from ...vocabulary.token_table import TokenTable
from ..interface import GrammarState
from ..lexer import is_broken

MAX_REMEMBERED = 16


class Known(NamedTuple):
    """Existing elements, or keys, by type."""

    seen: Seen
    texts: list[bytes]
    numbers: list[str]
    has_literal: bool
    has_container: bool


class _Alike(NamedTuple):
    """Earlier elements that equal an incomplete one in its complete children; `close`: with one more child."""

    seen: object
    children: object
    values: list[Value]
    close: bool


class _Begun(NamedTuple):
    """Members of `among` whose next child, or child `name`, begins with `text`."""

    among: list[Value]
    name: bytes
    text: bytes
    values: list[Value]


class Likeness:
    """Compares the current element with earlier ones."""

    def __init__(self) -> None:
        self._known: dict[int, Known] = {}
        self._matches: tuple[object, bytes, list[bytes]] | None = None
        self._alike: dict[tuple[int, int, bool], _Alike] = {}
        self._begun: _Begun | None = None

    def known(self, seen: Seen) -> Known:
        """Returns the values in `seen`, by type."""
        found = self._known.get(id(seen))
        if found is None:
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            values = list(all_seen(seen))
            scalars = [value for value in values if isinstance(value, str)]
            found = self._known[id(seen)] = Known(
                seen,
                [value for value in values if isinstance(value, bytes)],
                [value for value in scalars if value not in LITERALS],
                any(value in LITERALS for value in scalars),
                any(isinstance(value, tuple | frozenset) for value in values),
            )
        return found

    def matches(self, scan: Scan) -> list[bytes]:
        """Returns the strings, or keys, that the current one must differ from and is a prefix of."""
        frame, mode, text, _, _ = scan
        if not frame.seen or mode not in (Mode.STRING, Mode.KEY) or frame.is_object != (mode == Mode.KEY):
            return []
        known = self._matches
        if known is not None and known[0] is frame.seen and text.startswith(known[1]):
            if text == known[1]:
                return known[2]
            found = [match for match in known[2] if match.startswith(text)]
        else:
            found = [value for value in self.known(frame.seen).texts if value.startswith(text)]
        self._matches = frame.seen, text, found
        return found

    def may_close(self, frame: Frame, child: Frame) -> bool:
        """Returns True if the incomplete `child` can equal an element of `frame` once its current child is complete."""
        return self._alike_of(frame, child).close

    def is_similar(self, frame: Frame, child: Frame, scan: Scan) -> bool:
        """Returns True if `child` so far equals the start of an element of `frame`, and either is not empty or needs
        little more."""
        if frame.seen and not self.known(frame.seen).has_container:
            return False
        alike = self._alike_of(frame, child)
        if not alike.values:
            return False
        if scan.mode in (Mode.STRING, Mode.NUMBER) and scan.frame is child:
            return bool(self._beginning(alike.values, child, scan))
        if scan.frame is not child:  # the current value is an array or object
            return any(isinstance(_next_child(value, child), tuple | frozenset) for value in alike.values)
        return bool(child.children) or any(len(value) <= 1 for value in alike.values)

    def is_any_similar(self, scan: Scan) -> bool:
        """Returns True if `is_similar` holds for any array whose elements must differ and its incomplete element."""
        return any(self.is_similar(frame, child, scan) for frame, child in pairs(scan.frame))

    def _alike_of(self, frame: Frame, child: Frame) -> _Alike:
        assert frame.seen is not None
        key = id(frame.seen), id(child.children), child.is_object
        known = self._alike.get(key)
        if known is None:
            if len(self._alike) >= MAX_REMEMBERED:
                self._alike.clear()
            kind = frozenset if child.is_object else tuple
            values = [value for value in all_seen(frame.seen) if isinstance(value, kind)]
            known = _alike_objects(frame, child, values) if child.is_object else _alike_arrays(frame, child, values)
            self._alike[key] = known
        return known

    def _beginning(self, among: list[Value], child: Frame, scan: Scan) -> list[Value]:
        if scan.mode == Mode.NUMBER:
            return [value for value in among if _begins(scan, _next_child(value, child))]
        text, name = scan.text, child.name if child.is_object else b""
        known = self._begun
        if known is not None and known.among is among and known.name == name and text.startswith(known.text):
            if text == known.text:
                return known.values
            among_them = known.values
        else:
            among_them = among
        found = [value for value in among_them if _begins(scan, _next_child(value, child))]
        self._begun = _Begun(among, name, text, found)
        return found


def pairs(frame: Frame) -> Iterator[tuple[Frame, Frame]]:
    """Yields the arrays around `frame` whose elements must differ, each with its incomplete array or object."""
    below = frame.below
    while below is not None and below.watched:
        if below.differs and below.seen:
            yield below, frame
        frame, below = below, below.below


def _alike_arrays(frame: Frame, child: Frame, values: list[Value]) -> _Alike:
    count = len(child.children)
    found = [value for value in values if value[:count] == child.children]
    return _Alike(frame.seen, child.children, found, any(len(value) <= count + 1 for value in found))


def _alike_objects(frame: Frame, child: Frame, values: list[Value]) -> _Alike:
    """Finds the elements like an incomplete object. A key may come again with another value, so one of its present
    members may still change."""
    members = dict(child.children)
    items = frozenset(members.items())
    found = [value for value in values if items <= value]
    close = any(len(value) <= len(items) + 1 and _num_different(members, value) <= 1 for value in values)
    return _Alike(frame.seen, child.children, found, close)


def _num_different(members: dict[bytes, Value], value: frozenset[tuple[bytes, Value]]) -> int:
    """Returns the number of pairs of `value` that are not in `members`; a large number if `members` has another key."""
    others = dict(value)
    if not members.keys() <= others.keys():
        return len(others) + 2
    return sum(name not in members or members[name] != other for name, other in others.items())


def _next_child(value: Value, child: Frame) -> Value:
    if child.is_object:
        return next((other for name, other in value if name == child.name), None)
    count = len(child.children)
    return value[count] if count < len(value) else None


def _begins(scan: Scan, value: Value) -> bool:
    """Returns True if the current string or number is a prefix of `value`."""
    if scan.mode == Mode.STRING:
        return isinstance(value, bytes) and value.startswith(scan.text)
    if not isinstance(value, str):
        return False
    return value == number_value(scan.text.removesuffix(b".")) or value.startswith(scan.text.decode())


MAX_DEPTH = 3
"""Most tokens of lookahead to see if the current value can still become a new one."""
MAX_TRIALS = 24
"""Most tokens tried in the lookahead for one mask."""
MAX_STEPS = 32
"""Most forced runs followed in the lookahead."""
MAX_FEW = 32
"""Most tokens that a mask may allow for each of them to be examined."""

_PROBES = ("a", "7", "z")
"""Texts that, where their tokens are allowed, show that a string or number can become many others."""
_SEPARATORS: dict[Mode, tuple[bytes, ...]] = {
    Mode.NEXT: (b"", b" "),
    Mode.AFTER: (b",", b", "),
    Mode.NUMBER: (b",", b", "),
    Mode.STRING: (b'",', b'", '),
}
_SHORT_ESCAPES = {34: b'\\"', 92: b"\\\\", 8: b"\\b", 12: b"\\f", 10: b"\\n", 13: b"\\r", 9: b"\\t"}
_ESCAPED = {byte: _SHORT_ESCAPES.get(byte, b"\\u%04x" % byte) for byte in (*range(32), 34, 92)}


class DistinctState:
    """A `GrammarState`: that of `inner` without the tokens that, by `reader`, would repeat an element or a key.

    Expensive checks are made only inside arrays and objects whose elements or keys must differ, and most of them only
    where the current value is a prefix of an existing one.
    """

    def __init__(
        self, inner: GrammarState, tokens: TokenTable, reader: Reader, scans: tuple[Scan, ...] | None = None
    ) -> None:
        self._inner = inner
        self._tokens = tokens
        self._classes = tokens.elements  # built with the first grammar that needs it, not with its first mask
        self._reader = reader
        self._scans = [reader.start] if scans is None else list(scans)
        self._likeness = Likeness()
        self._openings: dict[tuple[int, Mode], tuple[Seen, list[int]]] = {}
        self._followed: tuple[Scan, int, Scan | None] | None = None
        self._num_trials = 0
        self._failure = ""  # of a copy whose lookahead broke the lexer

    @classmethod
    def guarding(cls, inner: GrammarState, tokens: TokenTable, paths: DistinctPaths) -> DistinctState:
        """Returns the start state of a grammar with `paths`."""
        return cls(inner, tokens, Reader(paths))

    # As the grammar's

    def deep_copy(self) -> DistinctState:
        return DistinctState(self._inner.deep_copy(), self._tokens, self._reader, tuple(self._scans))

    def is_accepting(self) -> bool:
        return self._inner.is_accepting()

    def is_stopped(self) -> bool:
        return self._inner.is_stopped()

    def is_error(self) -> bool:
        return bool(self._failure) or self._inner.is_error()

    def get_error(self) -> str:
        return self._failure or self._inner.get_error()

    def rollback(self, num_tokens: int) -> bool:
        if not self._inner.rollback(num_tokens):
            return False
        del self._scans[len(self._scans) - num_tokens :]
        return True

    # Without what repeats

    def unsafe_compute_mask_ptr(self, trg_pointer: int, trg_byte_size: int) -> None:
        self._inner.unsafe_compute_mask_ptr(trg_pointer, trg_byte_size)
        scan = self._scans[-1]
        if scan.frame.watched and not self._inner.is_error():
            memory = (ctypes.c_uint32 * (trg_byte_size // 4)).from_address(trg_pointer)
            row = np.frombuffer(memoryview(memory), np.uint32)
            self._num_trials = 0
            for token in self._forbid(scan, row):
                if self._is_dead_after(token, MAX_DEPTH):
                    _forbid(row, token)
            self._forbid_member(scan, row)

    def validate_tokens(self, tokens: list[int]) -> int:
        num_taken = 0
        for token in tokens:
            if not self._may_take(token):
                break
            num_taken += 1
            if num_taken < len(tokens):
                self.consume_token(token)
        self.rollback(max(min(num_taken, len(tokens) - 1), 0))
        return num_taken

    def consume_token(self, sampled_token: int) -> bool:
        scan = self._follow(sampled_token)
        if scan is None or not self._inner.consume_token(sampled_token):
            return False
        self._scans.append(scan)
        return True

    def try_consume_tokens(self, tokens: list[int]) -> int:
        for num_taken, token in enumerate(tokens):
            if not self._may_take(token) or not self.consume_token(token):
                return num_taken
        return len(tokens)

    def compute_ff_tokens(self) -> list[int]:
        scan, forced = self._scans[-1], self._inner.compute_ff_tokens()
        for count, token in enumerate(forced):
            try:
                scan = self._reader.feed(scan, self._tokens.text([token]))
            except DuplicateError:
                return forced[:count]
        return forced

    def compute_ff_bytes(self) -> bytes:
        scan, forced = self._scans[-1], self._inner.compute_ff_bytes()
        for count in range(len(forced)):
            try:
                scan = self._reader.feed(scan, forced[count : count + 1])
            except DuplicateError:
                return forced[:count]
        return forced

    def _follow(self, token: int) -> Scan | None:
        """Returns the reader's state after `token`; None if the token repeats a value."""
        scan, known = self._scans[-1], self._followed
        if known is not None and known[0] is scan and known[1] == token:
            return known[2]
        try:
            found = self._reader.feed(scan, self._tokens.text([token]))
        except DuplicateError:
            found = None
        self._followed = scan, token, found
        return found

    def _may_take(self, token: int) -> bool:
        """Returns True if `token` repeats nothing. Masks exclude more: tokens that can only lead to repetitions."""
        return self._inner.validate_tokens([token]) == 1 and self._follow(token) is not None

    # Masks

    def _forbid(self, scan: Scan, row: Row) -> list[int]:
        """Removes the tokens that repeat a value from a mask; returns those left that may lead only to repetitions."""
        classes = self._classes
        inside = scan.mode in (Mode.STRING, Mode.KEY)
        suspects = dict.fromkeys(classes.whole[inside].allowed(row))
        self._forbid_ends(scan, row, suspects)
        frame: Frame | None = scan.frame
        child: Frame | None = None
        while frame is not None and frame.watched:
            if frame.seen and frame.differs:
                known = self._likeness.known(frame.seen)
                if known.has_literal:
                    suspects.update(dict.fromkeys(classes.literals[inside].allowed(row)))
                if known.has_container and child is not None and self._likeness.may_close(frame, child):
                    suspects.update(dict.fromkeys(classes.closes[inside].allowed(row)))
            if frame.most is not None and frame.seen is not None and frame.num_seen + 1 >= frame.most:
                suspects.update(dict.fromkeys(classes.commas[inside].allowed(row)))
            frame, child = frame.below, frame
        if not suspects and inside and self._is_clear(scan):
            return []
        leading = [*self._forbid_repeating(scan, row, suspects), *self._leading(scan)]
        if self._is_narrow(scan):
            leading += _few(row)
        return [token for token in dict.fromkeys(leading) if row[token >> 5] >> (token & 31) & 1]

    def _is_clear(self, scan: Scan) -> bool:
        """Returns True if a string, which is a prefix of no earlier one, needs no further comparison."""
        frame = scan.frame
        assert frame.below is not None
        alone = frame.seen is not None and not frame.below.watched and not _is_scarce(frame)
        return alone and not self._likeness.matches(scan)

    def _forbid_ends(self, scan: Scan, row: Row, suspects: dict[int, None]) -> None:
        """Removes the tokens that end the current string or number where it equals an earlier one."""
        frame, mode, text, pending, _ = scan
        classes = self._classes
        if mode == Mode.NUMBER and frame.differs and is_seen(frame.seen, number_value(text)):
            classes.starting(b",").forbid(row)
            classes.starting(b"]").forbid(row)
        matches = self._likeness.matches(scan)
        if matches and pending:
            suspects.update(dict.fromkeys(classes.quotes.allowed(row)))
        elif matches:
            suspects.update(dict.fromkeys(classes.escapes.allowed(row)))
            for match in matches:
                end = _escaped(match[len(text) :]) + b'"'
                if len(end) <= classes.longest:
                    classes.starting(end).forbid(row)

    def _forbid_repeating(self, scan: Scan, row: Row, suspects: dict[int, None]) -> list[int]:
        """Removes the suspects that repeat a value, each tried byte by byte; returns those that may be about to."""
        leading: list[int] = []
        known: dict[bytes, Scan | None] = {b"": scan}
        for token in suspects:
            text = self._tokens.text([token])
            here: Scan | None = scan
            for stop in range(1, len(text) + 1):
                assert here is not None
                head = text[:stop]
                if head not in known:
                    try:
                        known[head] = self._reader.feed(here, head[-1:])
                    except DuplicateError:
                        known[head] = None
                here = known[head]
                if here is None:
                    _forbid(row, token)
                    break
            if here is not None and self._is_critical(here):
                leading.append(token)
        return leading

    # Lookahead

    def _leading(self, scan: Scan) -> list[int]:
        """Returns tokens that write, or continue, a value that would be a repetition if it ended."""
        frame, mode, _, pending, _ = scan
        if not frame.seen or pending:
            return []
        found = [token for opening in self._rests(scan) for token in self._tokens.spelling(opening)]
        if frame.differs and mode in _SEPARATORS:
            key = id(frame.seen), mode
            known = self._openings.get(key)
            if known is None:
                if len(self._openings) >= MAX_REMEMBERED:
                    self._openings.clear()
                openings = dict.fromkeys(self._openings_of(frame, mode))
                tokens = [token for opening in openings for token in self._tokens.spelling(opening)]
                known = self._openings[key] = frame.seen, tokens
            found += known[1]
        return found

    def _rests(self, scan: Scan) -> Iterator[bytes]:
        """Yields the continuations by which the current value would become an existing one."""
        frame, mode, text, _, _ = scan
        assert frame.seen is not None
        longest = self._classes.longest
        scarce = _is_scarce(frame)
        rests: list[bytes] = []
        if mode == Mode.NUMBER and frame.differs:
            if is_seen(frame.seen, number_value(text)):
                yield from (b".", b".0", b"0")
            start = text.decode()
            rests = [number[len(text) :].encode() for number in self._numbers(frame) if number.startswith(start)]
        elif not _is_open(frame):
            rests = [_escaped(match[len(text) :]) for match in self._likeness.matches(scan)]
        for rest in rests:
            if scarce:
                yield from (rest[:stop] for stop in range(1, min(len(rest), longest) + 1))
            elif rest:
                yield rest

    def _openings_of(self, frame: Frame, mode: Mode) -> Iterator[bytes]:
        """Yields the beginnings of existing elements, with the separator before them."""
        assert frame.seen is not None
        longest = self._classes.longest
        scarce = _is_scarce(frame)
        openings = [number.encode() for number in self._numbers(frame)]
        if not _is_open(frame):
            openings += [b'"' + _escaped(text) for text in self._likeness.known(frame.seen).texts]
        for separator in _SEPARATORS[mode]:
            for opening in openings:
                for stop in range(1 if scarce else len(opening), min(len(opening), longest) + 1):
                    yield separator + opening[:stop]

    def _numbers(self, frame: Frame) -> list[str]:
        assert frame.seen is not None
        numbers = self._likeness.known(frame.seen).numbers
        return [*numbers, "-0", "-"] if "0" in numbers else numbers

    def _is_dead_after(self, token: int, depth: int) -> bool:
        """Returns True if all continuations of `token`, which is allowed, repeat a value; with bounded effort."""
        scan = self._follow(token)
        if scan is None or self._num_trials >= MAX_TRIALS or not self._is_endangered(scan):
            return scan is None
        start = len(self._scans)
        self._num_trials += 1
        self.consume_token(token)
        dead = self._is_dead(depth)
        self.rollback(len(self._scans) - start)
        return dead

    def _is_dead(self, depth: int) -> bool:
        """Returns True if all continuations repeat a value; follows text as far as it is forced, spaces aside."""
        for _ in range(MAX_STEPS):
            forced = self._inner.compute_ff_bytes()
            if forced:
                try:
                    self._reader.feed(self._scans[-1], forced)
                except DuplicateError:
                    return True
            step = self._tokens.encode(forced or b" ")
            if not forced and self._scans[-1].mode not in (Mode.NEXT, Mode.COLON, Mode.VALUE):
                break
            if not forced and self.validate_tokens(step) != len(step):
                break
            if self.try_consume_tokens(step) != len(step) or not self._is_endangered(self._scans[-1]):
                return False
        scan = self._scans[-1]
        if depth == 0 or not self._is_critical(scan) or self._has_way(self._tokens.known(_PROBES)):
            return False
        row = np.zeros(self._tokens.num_words, dtype=np.uint32)
        # A state that computed a mask cannot be rolled back: see `GrammarState`.
        ahead = self._inner.deep_copy()
        ahead.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if is_broken(ahead):
            self._failure = ahead.get_error()
        leading = self._forbid(scan, row)
        for token in leading:
            _forbid(row, token)
        if row.any() or self._has_way(leading):
            return False
        return all(self._is_dead_after(token, depth - 1) for token in leading)

    def _has_way(self, tokens: list[int]) -> bool:
        """Returns True if one of `tokens` leads to a value that is plainly new."""
        for token in tokens:
            if self._inner.validate_tokens([token]) == 1:  # before the reader sees it: it must be JSON
                scan = self._follow(token)
                if scan is not None and not self._is_endangered(scan):
                    return True
        return False

    def _is_endangered(self, scan: Scan) -> bool:
        """Returns True if the current value may still become a repetition, as far as it matters."""
        frame, mode, text, _, _ = scan
        if frame.differs and _is_scarce(frame) and mode in (Mode.NUMBER, Mode.NEXT):
            return True
        if mode == Mode.NUMBER and frame.differs:
            return text == b"-" or is_seen(frame.seen, number_value(text.removesuffix(b".")))
        return bool(self._likeness.matches(scan)) or self._likeness.is_any_similar(scan)

    def _is_critical(self, scan: Scan) -> bool:
        """Returns True unless a continuation that is not forced can plainly become a new value."""
        matches = self._likeness.matches(scan)
        if len(matches) == 1:
            return matches[0] == scan.text or not matches[0].isascii()
        return self._is_endangered(scan)

    def _is_narrow(self, scan: Scan) -> bool:
        """Returns True if each token must be examined where there are few: elements run out, or equal the start of
        earlier ones."""
        frame = scan.frame
        if frame.seen is not None:
            if _is_scarce(frame) or (not _is_open(frame) and self._likeness.matches(scan)):
                return True
            if frame.differs and scan.mode == Mode.NEXT and self._likeness.known(frame.seen).has_container:
                return True
        return any(_is_scarce(below) for below, _ in pairs(frame)) or self._likeness.is_any_similar(scan)

    def _forbid_member(self, scan: Scan, row: Row) -> None:
        """Removes the tokens that end a string or number in an element which could then only repeat an earlier one."""
        frame, mode, _, pending, _ = scan
        if mode not in (Mode.STRING, Mode.NUMBER) or pending or frame.below is None or not frame.below.differs:
            return
        mark = b'"' if mode == Mode.STRING else b","
        if self._is_endangered(scan):
            for token in self._tokens.spelling(mark)[:1]:
                if row[token >> 5] >> (token & 31) & 1 and self._is_dead_after(token, MAX_DEPTH):
                    self._classes.starting(mark).forbid(row)


def _is_scarce(frame: Frame) -> bool:
    return frame.state is not None and frame.state.scarce


def _is_open(frame: Frame) -> bool:
    return frame.state is not None and frame.state.open


def _few(row: Row) -> list[int]:
    """Returns the tokens of a mask row if there are few."""
    words = np.flatnonzero(row)
    if len(words) > MAX_FEW:
        return []
    found = [(word << 5) + bit for word in words.tolist() for bit in range(32) if int(row[word]) >> bit & 1]
    return found if len(found) <= MAX_FEW else []


def _forbid(row: Row, token: int) -> None:
    row[token >> 5] &= ~np.uint32(1 << (token & 31))


def _escaped(text: bytes) -> bytes:
    """Returns the most likely spelling of `text` inside a JSON string."""
    return b"".join(_ESCAPED.get(byte, bytes((byte,))) for byte in text) if _needs_escape(text) else text


def _needs_escape(text: bytes) -> bool:
    return any(byte in _ESCAPED for byte in text)
