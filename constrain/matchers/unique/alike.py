"""Tells whether what has begun of an element is like elements before it, and remembers that for the steps after."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...json_text.reader import LITERALS, Frame, Mode, Scan, Seen, Value, all_seen, number_value

MAX_REMEMBERED = 16


class Known(NamedTuple):
    """The elements, or keys, that are there, by type."""

    seen: Seen
    texts: list[bytes]
    numbers: list[str]
    has_literal: bool
    has_container: bool


class _Alike(NamedTuple):
    """Elements before an incomplete one that are like it, by its complete children; `close`: by these and one more."""

    seen: object
    children: object
    values: list[Value]
    close: bool


class _Begun(NamedTuple):
    """Those of `among` whose next child, or child `name`, begins with `text`."""

    among: list[Value]
    name: bytes
    text: bytes
    values: list[Value]


class Likeness:
    """Looks through the elements before the one at hand."""

    def __init__(self) -> None:
        self._known: dict[int, Known] = {}
        self._matches: tuple[object, bytes, list[bytes]] | None = None
        self._alike: dict[tuple[int, int, bool], _Alike] = {}
        self._begun: _Begun | None = None

    def known(self, seen: Seen) -> Known:
        """What is in `seen`."""
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
        """The strings, or keys, from which the one that has begun must differ, and whose beginning it is."""
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
        """Whether `child`, which is not complete, can equal an element of `frame` once the child of it at hand is."""
        return self._alike_of(frame, child).close

    def is_similar(self, frame: Frame, child: Frame, scan: Scan) -> bool:
        """Whether `child` is so far like an element of `frame`, and something of it is there or not much is to come."""
        if frame.seen and not self.known(frame.seen).has_container:
            return False
        alike = self._alike_of(frame, child)
        if not alike.values:
            return False
        if scan.mode in (Mode.STRING, Mode.NUMBER) and scan.frame is child:
            return bool(self._beginning(alike.values, child, scan))
        if scan.frame is not child:  # what is at hand is an array or object
            return any(isinstance(_next_child(value, child), tuple | frozenset) for value in alike.values)
        return bool(child.children) or any(len(value) <= 1 for value in alike.values)

    def is_any_similar(self, scan: Scan) -> bool:
        """The same for any array whose elements must differ and the element of it that is not complete."""
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
    """Arrays around `frame` whose elements must differ, each with the array or object in it that has begun."""
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
    """A key may come again with another value: one of those that are there may not be what it is in the end."""
    members = dict(child.children)
    items = frozenset(members.items())
    found = [value for value in values if items <= value]
    close = any(len(value) <= len(items) + 1 and _num_different(members, value) <= 1 for value in values)
    return _Alike(frame.seen, child.children, found, close)


def _num_different(members: dict[bytes, Value], value: frozenset[tuple[bytes, Value]]) -> int:
    """How many of the pairs of `value` are not among `members`; many if there is one more in these."""
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
    """Whether the string or number at hand is the beginning of `value`."""
    if scan.mode == Mode.STRING:
        return isinstance(value, bytes) and value.startswith(scan.text)
    if not isinstance(value, str):
        return False
    return value == number_value(scan.text.removesuffix(b".")) or value.startswith(scan.text.decode())
