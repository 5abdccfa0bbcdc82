"""Incremental JSON reader for pieces of any size. Its states are values, so that a matcher can return to any of them.

It detects repeated elements and keys; `closing` returns the text that completes a prefix.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import msgspec

Value: TypeAlias = Any
"""Canonical form of a JSON value: bytes for a string, str for a number or literal, a tuple, a frozenset."""

Seen: TypeAlias = tuple[frozenset[Value], ...]
"""Persistent set with cheap growth: parts of decreasing sizes."""

MAX_DEPTH = 256
"""Most nested levels in a value that must differ from others: comparing it must not exhaust the stack."""
MAX_ZEROS = 400
"""Most digits that an exponent may add to an integer; a larger one equals only numbers with the same spelling."""

LITERALS = frozenset({"true", "false", "null"})

_STRING_STOP = re.compile(rb'["\\]')
_NUMBER = frozenset(b"0123456789+-.eE")
_LITERAL_OF = {ord("t"): b"true", ord("f"): b"false", ord("n"): b"null"}
_QUOTE, _COMMA, _COLON = b'",:'
_SPACES = b" \t\n\r"
_OPEN, _CLOSE, _OPEN_OBJECT = b"[{", b"]}", ord("{")


NOWHERE = -1
"""State of a value in which nothing needs to be examined."""


class PathState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Knowledge about the value at a place of an instance.

    items, keys              an array's elements must differ; an object's keys must differ
    most_items, most_keys    number of different ones that exist at all, if known
    scarce                   they may run out: there are few at some place
    open                     strings among them, or keys, may continue in any way wherever they could end
    prefix, rest             states of an array's elements
    names, other             states of an object's values, by key
    """

    items: bool = False
    keys: bool = False
    most_items: int | None = None
    most_keys: int | None = None
    scarce: bool = False
    open: bool = False
    prefix: tuple[int, ...] = ()
    rest: int = NOWHERE
    names: tuple[tuple[str, int], ...] = ()
    other: int = NOWHERE

    def steps(self) -> Iterator[int]:
        """Yields the states of all its children."""
        yield from (*self.prefix, self.rest, *(following for _, following in self.names), self.other)


class DistinctPaths(msgspec.Struct, frozen=True):
    """Automaton over the places of an instance: state 0 is the whole value.

    pointers    JSON pointers of the keywords that it takes care of; the root ("") stands for too many of them
    """

    states: tuple[PathState, ...]
    pointers: tuple[str, ...]


class DuplicateError(Exception):
    """The text repeats an element or key, or can only become one that exists already; or it is nested too deeply."""


class Mode(IntEnum):
    """Part of the text that the next byte belongs to."""

    FIRST = 0
    """The first element or key, or the closing bracket."""
    NEXT = 1
    """An element or a key."""
    COLON = 2
    AFTER = 3
    """State after an element."""
    STRING = 4
    KEY = 5
    NUMBER = 6
    LITERAL = 7
    VALUE = 8
    """State after a key and its colon."""


class Frame(NamedTuple):
    """An incomplete array or object.

    state       knowledge about its place
    seen        its elements, or keys, so far, if they must differ; else None
    num_seen    number of these, of at most `most`
    tracked     its value matters: it is, or is in, an element that must differ from others
    watched     its elements or keys must differ, or those of an array or object around it
    children    values of its elements, or key-value pairs, if it is tracked
    num_read    number of complete elements, or keys with values
    name        the last key
    depth       number of tracked ones around it
    """

    below: Frame | None
    is_object: bool
    state: PathState | None
    seen: Seen | None = None
    num_seen: int = 0
    most: int | None = None
    tracked: bool = False
    watched: bool = False
    children: tuple[Value, ...] = ()
    num_read: int = 0
    name: bytes = b""
    depth: int = 0

    @property
    def differs(self) -> bool:
        """True for an array whose elements must differ."""
        return self.seen is not None and not self.is_object


class Scan(NamedTuple):
    """State of a text: the innermost array or object, and the string, number or literal that has begun.

    text       its content so far in UTF-8 with escapes resolved, if `keeps`; the rest of a literal
    pending    an incomplete escape, in the bytes of the text; all of a literal
    keeps      the content matters
    """

    frame: Frame
    mode: Mode
    text: bytes = b""
    pending: bytes = b""
    keeps: bool = False


class Reader:
    """Reads texts by an automaton of places."""

    def __init__(self, paths: DistinctPaths) -> None:
        self._states = paths.states
        self._names = {id(state): {_utf8(name): step for name, step in state.names} for state in paths.states}
        self.start = Scan(Frame(None, False, PathState(rest=0)), Mode.NEXT)

    def feed(self, scan: Scan, data: bytes) -> Scan:
        """Reads more of the text; returns the new state. Raises DuplicateError."""
        position = 0
        while position < len(data):
            if scan.mode == Mode.STRING or scan.mode == Mode.KEY:
                scan, position = self._string(scan, data, position)
            else:
                scan = self._byte(scan, data[position])
                position += 1
        return scan

    def _string(self, scan: Scan, data: bytes, position: int) -> tuple[Scan, int]:
        """Reads more of a string, at most to its end."""
        frame, mode, text, pending, keeps = scan
        while position < len(data):
            if pending:
                pending += data[position : position + 1]
                position += 1
                if _is_whole(pending):
                    text, pending = (text + _unescaped(pending) if keeps else text), b""
                continue
            found = _STRING_STOP.search(data, position)
            stop = found.start() if found is not None else len(data)
            if keeps:
                text += data[position:stop]
            position = stop + 1
            if found is None:
                break
            if data[stop] == _QUOTE:
                return (_with_key(frame, text) if mode == Mode.KEY else _with_value(frame, text)), position
            pending = b"\\"
        return Scan(frame, mode, text, pending, keeps), position

    def _byte(self, scan: Scan, byte: int) -> Scan:
        frame, mode, text, pending, keeps = scan
        if mode == Mode.NUMBER:
            if byte in _NUMBER:
                return Scan(frame, mode, text + bytes((byte,)), b"", keeps)
            scan = _with_value(frame, (number_value(text) or text.decode()) if keeps else None)
            frame, mode = scan.frame, scan.mode
        elif mode == Mode.LITERAL:
            if len(text) > 1:
                return Scan(frame, mode, text[1:], pending, keeps)
            return _with_value(frame, pending.decode())
        if byte in _SPACES:
            return scan
        if byte == _COMMA:
            if frame.seen is not None and frame.most is not None and frame.num_seen >= frame.most:
                raise DuplicateError
            return Scan(frame, Mode.NEXT)
        if byte == _COLON:
            return Scan(frame, Mode.VALUE)
        if byte in _OPEN:
            return Scan(self._opened(frame, byte == _OPEN_OBJECT), Mode.FIRST)
        if byte in _CLOSE:
            assert frame.below is not None
            return _with_value(frame.below, _value_of(frame))
        return self._scalar(frame, mode, byte)

    def _scalar(self, frame: Frame, mode: Mode, byte: int) -> Scan:
        """Reads the first byte of a string, number or literal."""
        if byte == _QUOTE and frame.is_object and mode != Mode.VALUE:
            return Scan(frame, Mode.KEY, keeps=frame.tracked or frame.state is not None)
        keeps = frame.tracked or frame.differs
        if byte == _QUOTE:
            return Scan(frame, Mode.STRING, keeps=keeps)
        literal = _LITERAL_OF.get(byte)
        if literal is None:
            return Scan(frame, Mode.NUMBER, bytes((byte,)), keeps=keeps)
        if frame.differs and is_seen(frame.seen, literal.decode()):
            raise DuplicateError
        return Scan(frame, Mode.LITERAL, literal[1:], literal, keeps)

    def _opened(self, parent: Frame, is_object: bool) -> Frame:
        state = self._child(parent)
        tracked = parent.tracked or parent.differs
        depth = parent.depth + tracked
        if depth > MAX_DEPTH:
            raise DuplicateError
        if state is None:
            return Frame(parent, is_object, None, tracked=tracked, watched=parent.watched, depth=depth)
        differs = state.keys if is_object else state.items
        return Frame(
            parent,
            is_object,
            state,
            () if differs else None,
            0,
            state.most_keys if is_object else state.most_items,
            tracked,
            parent.watched or differs,
            depth=depth,
        )

    def _child(self, frame: Frame) -> PathState | None:
        """Returns the knowledge about the value that comes next."""
        state = frame.state
        if state is None:
            return None
        if frame.is_object:
            number = self._names[id(state)].get(frame.name, state.other)
        else:
            number = state.prefix[frame.num_read] if frame.num_read < len(state.prefix) else state.rest
        return None if number == NOWHERE else self._states[number]


READER = Reader(DistinctPaths((), ()))
START = Scan(Frame(None, False, None), Mode.NEXT)
"""Initial state for texts in which nothing has to differ."""


def closing(scan: Scan, tail: bytes, value: bytes = b"null") -> bytes:
    """Returns the shortest text that completes a prefix of a JSON text; empty if it is complete.

    `tail` holds the last bytes that were read, at least three if there are as many; `value` is inserted where a value
    is missing. What was read must be a prefix of JSON, as ensured by a grammar of JSON texts.
    """
    frame, mode, text, pending, _ = scan
    result = b""
    if mode == Mode.LITERAL:
        result = text
    elif mode == Mode.NUMBER and not text[-1:].isdigit():
        result = b"0"
    elif mode in (Mode.STRING, Mode.KEY):
        escape = pending[6:] if len(pending) >= 6 else pending  # the second half of a surrogate pair
        result = _rest_of_character(tail) if not pending else b""
        result += (b'"' if escape == b"\\" else b"0" * (6 - len(escape)) if escape else b"") + b'"'
    if mode == Mode.NEXT and frame.is_object:
        result = b'""'
    if mode in (Mode.KEY, Mode.COLON) or (mode == Mode.NEXT and frame.is_object):
        result += b":"
    if mode in (Mode.KEY, Mode.COLON, Mode.NEXT, Mode.VALUE):
        result += value
    while frame.below is not None:
        result += b"}" if frame.is_object else b"]"
        frame = frame.below
    return result


_SECOND_BYTES = {0xE0: b"\xa0", 0xED: b"\x80", 0xF0: b"\x90", 0xF4: b"\x80"}
"""A valid second byte for each first byte of UTF-8 that restricts it."""


def _rest_of_character(tail: bytes) -> bytes:
    """Returns the bytes that complete the UTF-8 character at the end of `tail`; empty if it is complete."""
    for back in range(1, min(len(tail), 3) + 1):
        lead = tail[-back]
        if lead >= 0xC0:
            length = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return (_SECOND_BYTES.get(lead, b"\x80") + b"\x80\x80")[back - 1 : length - 1]
        if lead < 0x80:
            break
    return b""


def is_seen(seen: Seen | None, value: Value) -> bool:
    """Returns True if `value` is in `seen`."""
    return seen is not None and any(value in part for part in seen)


def all_seen(seen: Seen) -> Iterator[Value]:
    """Yields each value in `seen`."""
    for part in seen:
        yield from part


@lru_cache(maxsize=4096)
def number_value(text: bytes) -> str | None:
    """Returns a key shared by equal numbers, exact or as floating point numbers; None for an incomplete one."""
    if text[-1:] in b"+-.eE":
        return None
    digits = text.removeprefix(b"-")
    if digits.isdigit():
        return "0" if digits == b"0" else text.decode()
    try:
        sign, figures, exponent = Decimal(text.decode()).as_tuple()
    except InvalidOperation:
        return None
    assert isinstance(exponent, int)
    whole = "".join(map(str, figures)).strip("0")
    if not whole:
        return "0"
    exponent += len(figures) - len("".join(map(str, figures)).rstrip("0"))
    if 0 <= exponent <= MAX_ZEROS:
        return "-" * sign + whole + "0" * exponent
    if exponent > 0:
        return f"{'-' * sign}{whole}e{exponent}"
    approximate = float(text)
    return str(int(approximate)) if approximate.is_integer() else repr(approximate)


def _with_key(frame: Frame, name: bytes) -> Scan:
    """Returns the state after the key `name`."""
    seen, num_seen = frame.seen, frame.num_seen
    if seen is not None:
        if is_seen(seen, name):
            raise DuplicateError
        seen, num_seen = _added(seen, name), num_seen + 1
    below, is_object, state, _, _, most, tracked, watched, children, num_read, _, depth = frame
    changed = Frame(below, is_object, state, seen, num_seen, most, tracked, watched, children, num_read, name, depth)
    return Scan(changed, Mode.COLON)


def _with_value(frame: Frame, value: Value) -> Scan:
    """Returns the state after an element, or after the value of the last key."""
    below, is_object, state, seen, num_seen, most, tracked, watched, children, num_read, name, depth = frame
    if seen is not None and not is_object:
        if is_seen(seen, value):
            raise DuplicateError
        seen, num_seen = _added(seen, value), num_seen + 1
    if tracked:
        children = (*children, (name, value) if is_object else value)
    changed = Frame(
        below, is_object, state, seen, num_seen, most, tracked, watched, children, num_read + 1, name, depth
    )
    return Scan(changed, Mode.AFTER)


def _value_of(frame: Frame) -> Value:
    """Returns the value of a complete array or object, as far as it matters."""
    if not frame.tracked:
        return None
    return frozenset(dict(frame.children).items()) if frame.is_object else frame.children


def _added(seen: Seen, value: Value) -> Seen:
    part = frozenset((value,))
    while seen and len(seen[-1]) <= len(part):
        part |= seen[-1]
        seen = seen[:-1]
    return (*seen, part)


def _is_whole(escape: bytes) -> bool:
    if len(escape) < 2 or escape[1] != ord("u"):
        return len(escape) == 2
    return len(escape) == (12 if escape[2:3] in b"dD" and escape[3:4] in b"89abAB" and escape[3:4] else 6)


def _unescaped(escape: bytes) -> bytes:
    return _utf8(json.loads(b'"' + escape + b'"'))


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
