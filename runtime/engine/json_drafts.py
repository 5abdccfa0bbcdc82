"""What answers under one JSON constraint have in common, whoever gives them: their skeleton, place by place."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from ...constrain.spec import JsonSchema
from ..protocol.request import Request

TAIL = 16
"""Bytes of the skeleton by which a place is known: a key and what stands around it."""
MAX_CONTENT = 16
"""Bytes of a value by which a place within it is known; within longer ones nothing is."""
MAX_DEPTH = 16
"""Open containers that are told apart, the innermost ones."""
MAX_LINKS = 8192
"""Of one constraint. A link and the place it leads to take some 700 bytes."""
MAX_CONSTRAINTS = 16
MAX_STREAK = 31
CHANCES = (0.0, 0.4, 0.65, 0.8, 0.9, 0.96)
"""Before they are measured, by the streak's number of bits."""

_VALUE, _AFTER_VALUE, _KEY, _SCALAR, _IN_STRING, _IN_KEY, _ESCAPE, _KEY_ESCAPE = range(8)
_ESCAPED: Final = {_IN_STRING: _ESCAPE, _IN_KEY: _KEY_ESCAPE}
_UNESCAPED: Final = {escape: string for string, escape in _ESCAPED.items()}
_DECAY = 0.02
_BITS = tuple(streak.bit_length() for streak in range(MAX_STREAK + 1))

Shape = tuple[int, int, bytes, bytes | None]
"""Where a text stands: what is read, the open containers (after a first 1 a bit each, 1 for an object), the last bytes
of the skeleton, and what there is of the value (None: too much). The skeleton is the text without what its values
hold: keys, quotation marks, brackets, commas, colons and whitespace. Digits of a value are all the same."""


class Place:
    """What came last in texts of one shape, how often in a row, and where each token leads that came."""

    __slots__ = ("_after", "_known", "_shape", "_skeleton", "streak", "token")

    def __init__(self, shape: Shape, skeleton: Skeleton) -> None:
        self.token = -1
        self.streak = 0
        self._shape = shape
        self._skeleton = skeleton
        self._known = shape[3] is not None
        self._after: dict[int, Place] = {}

    @property
    def chance(self) -> float:
        """That `token` comes next: how often it was right after such a streak. 0.0 if nothing has come."""
        return self._skeleton.chances[_BITS[self.streak]]

    def follow(self, token: int) -> Place:
        """The place after `token`."""
        return self._after.get(token) or self._link(token)

    def teach(self, tokens: Iterable[int]) -> Place:
        """The place after `tokens`, which an answer went on with from here. They may be any: only drafts change."""
        place, chances = self, self._skeleton.chances
        for token in tokens:
            if place._known:
                bits, right = _BITS[place.streak], token == place.token
                if bits:
                    chances[bits] += _DECAY * (right - chances[bits])
                if right:
                    place.streak = min(place.streak + 1, MAX_STREAK)
                else:
                    place.streak >>= 2  # what came often is not forgotten at once
                    if not place.streak:
                        place.token, place.streak = token, 1
            place = place._after.get(token) or place._link(token)
        return place

    def forget(self) -> None:
        """Forgets where tokens lead."""
        self._after.clear()

    def _link(self, token: int) -> Place:
        skeleton = self._skeleton
        text = skeleton.texts[token] if 0 <= token < len(skeleton.texts) else None
        shape = _advance(self._shape, text) if text else self._shape
        if shape == self._shape:  # not to be kept: most of what a long value holds
            return self
        following = self._after[token] = skeleton.linked(shape)
        return following


class Skeleton:
    """All places that answers under one constraint have come by. `texts` are the bytes of the tokens."""

    def __init__(self, texts: Sequence[bytes | None], max_links: int = MAX_LINKS) -> None:
        self.texts = texts
        self.chances = list(CHANCES)
        """How often what came last came again, by the number of bits of the streak."""
        self._max_links = max_links
        self._num_links = 0
        self._places: dict[Shape, Place] = {}

    @property
    def start(self) -> Place:
        """Where an answer begins."""
        return self.linked((_VALUE, 1, b"", b""))

    def linked(self, shape: Shape) -> Place:
        """The place of this shape, for one more link to it."""
        if self._num_links >= self._max_links:
            self._sweep()
        self._num_links += 1
        place = self._places.get(shape)
        if place is None:
            place = self._places[shape] = Place(shape, self)
        return place

    def _sweep(self) -> None:
        """Forgets all links, and the places where nothing has come twice; the others too if they are many."""
        for place in self._places.values():
            place.forget()
        often = {shape: place for shape, place in self._places.items() if place.streak > 1}
        self._places = often if 2 * len(often) <= self._max_links else {}
        self._num_links = len(self._places)


class Skeletons:
    """The skeletons of the constraints used last. Requests share one as they share prefixes: within a namespace."""

    def __init__(self, texts: Sequence[bytes | None]) -> None:
        self._texts = texts
        self._of: OrderedDict[tuple[str, JsonSchema], Skeleton] = OrderedDict()

    def start(self, request: Request) -> Place | None:
        """Where the answer to `request` begins; None if it is not to be JSON by a schema."""
        if not isinstance(request.grammar, JsonSchema):
            return None
        key = request.namespace, request.grammar
        skeleton = self._of.pop(key, None) or Skeleton(self._texts)
        self._of[key] = skeleton
        if len(self._of) > MAX_CONSTRAINTS:
            self._of.popitem(last=False)
        return skeleton.start


def _advance(shape: Shape, text: bytes) -> Shape:
    """The shape after `text`, which may be any."""
    mode, stack, tail_before, content = shape
    if mode == _IN_STRING and content is None and b'"' not in text and b"\\" not in text:
        return shape
    tail, value, lost = bytearray(tail_before), bytearray(content or b""), content is None
    for byte in text:
        sign = chr(byte)
        if mode in _UNESCAPED or (mode in _ESCAPED and sign != '"'):
            (tail if mode in (_IN_KEY, _KEY_ESCAPE) else value).append(byte)
            mode = _UNESCAPED[mode] if mode in _UNESCAPED else _ESCAPED[mode] if sign == "\\" else mode
            continue
        if sign not in '"{}[],: \t\r\n':
            mode = _SCALAR
            value.append(0x30 if sign.isdecimal() else byte)
            continue
        tail.append(byte)
        if sign == '"':
            mode = _AFTER_VALUE if mode in _ESCAPED else _IN_KEY if mode == _KEY else _IN_STRING
        elif sign in "{[":
            stack = (stack << 1 | (sign == "{")) & ((2 << MAX_DEPTH) - 1) | 1 << min(stack.bit_length(), MAX_DEPTH)
            mode = _KEY if sign == "{" else _VALUE
        elif sign in "}]":
            stack, mode = max(stack >> 1, 1), _AFTER_VALUE
        elif sign in ",:":
            mode = _KEY if sign == "," and stack > 1 and stack & 1 else _VALUE
        else:
            continue
        value.clear()
        lost = False
    return mode, stack, bytes(tail[-TAIL:]), None if lost or len(value) > MAX_CONTENT else bytes(value)
