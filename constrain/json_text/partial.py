"""Partial JSON reader: exposes the complete part of a value while its text is being written."""

from __future__ import annotations

import json
import re
from typing import Any, Final, Protocol


class Absent:
    """Type of `ABSENT`: nothing to show yet."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "ABSENT"

    def __bool__(self) -> bool:
        return False


ABSENT: Final = Absent()


class Shape(Protocol):
    """Conversion of the value at one place of the text. `ABSENT` leaves it out."""

    def member(self, name: str) -> Shape:
        """Returns the shape of an object's property."""

    def item(self, index: int) -> Shape:
        """Returns the shape of an array's item."""

    def whole(self, value: Any) -> Any:
        """Converts a complete JSON value."""

    def begun(self, content: Any) -> Any:
        """Converts an incomplete object (dict) or array (list); `content` holds its converted members."""


class Plain:
    """Shape of values as `json.loads` returns them."""

    def member(self, name: str) -> Shape:
        return self

    def item(self, index: int) -> Shape:
        return self

    def whole(self, value: Any) -> Any:
        return value

    def begun(self, content: Any) -> Any:
        return content


PLAIN: Final = Plain()

_LITERALS: dict[str, Any] = {"true": True, "false": False, "null": None}
_UNQUOTED = re.compile(r'[^"\\]*')
_NUMBER = re.compile(r"[-+.0-9eE]+")
_SPACE = " \t\n\r"


class _Open:
    """An incomplete object or array.

    value      its complete members, as JSON values
    shown      the same as converted by `shape`; nothing is shown inside an incomplete item of an array
    name       name of the member that is being written
    hidden     it is, or is inside, such an item
    """

    __slots__ = ("hidden", "name", "shape", "shown", "value")

    def __init__(self, shape: Shape, value: dict[str, Any] | list[Any], *, hidden: bool) -> None:
        self.shape = shape
        self.value = value
        self.shown: Any = type(value)()
        self.hidden = hidden
        self.name = ""

    def child(self) -> Shape:
        """Returns the shape of the value that comes next."""
        return self.shape.member(self.name) if isinstance(self.value, dict) else self.shape.item(len(self.value))

    def put(self, value: Any) -> bool:
        """Adds the next value, which is complete; returns True if it is shown."""
        shown = ABSENT if self.hidden else self.child().whole(value)
        if isinstance(self.value, dict):
            self.value[self.name] = value
            if shown is not ABSENT:
                self.shown[self.name] = shown
        else:
            self.value.append(value)
            if shown is not ABSENT:
                self.shown.append(shown)
        return shown is not ABSENT


class PartialReader:
    """Reads a JSON text in pieces and shows the complete part of its value.

    A string is complete when it is closed, a number when something follows it. An array shows its complete items; an
    object shows its complete members, and the complete part of a member that is an object or array, if there is any.
    What has been shown does not change. Each value is converted once, and reading takes time in proportion to the
    length of the text, however it is cut into pieces.

    >>> reader = PartialReader()
    >>> reader.feed('{"name": "Ada", "tags": ["x", "y')
    True
    >>> reader.value
    {'name': 'Ada', 'tags': ['x']}
    """

    def __init__(self, shape: Shape = PLAIN) -> None:
        self.done = False
        self._shape = shape
        self._stack: list[_Open] = []
        self._pieces: list[str] = []  # of the current string, number or literal
        self._escaped = False
        self._expected = "value"  # name, colon, comma, string, number, literal; "?": or the end of an empty one
        self._is_name = False
        self._root: Any = ABSENT
        self._num_shown = 0

    @property
    def value(self) -> Any:
        """Returns a copy of the complete part so far, which later input does not change; ABSENT if there is none."""
        if self.done:
            return self._shape.whole(self._root)
        depth = 0
        while depth < len(self._stack) and not self._stack[depth].hidden:
            depth += 1
        inner: Any = ABSENT
        for level in range(depth - 1, -1, -1):
            frame = self._stack[level]
            content = frame.shown.copy()
            if inner is not ABSENT:  # then this is an object, since nothing inside an array's item is shown
                content[frame.name] = inner
            inner = frame.shape.begun(content) if content else ABSENT
        return inner

    def feed(self, text: str) -> bool:
        """Reads more of the text; returns True if `value` now shows more.

        Raises:
            ValueError: the text is not JSON. Nothing more can be fed.
        """
        before, position = self._num_shown, 0
        while position < len(text):
            if self._expected == "string":
                position = self._read_string(text, position)
            elif self._expected == "number":
                position = self._read_number(text, position)
            elif self._expected == "literal":
                self._read_literal(text[position])
                position += 1
            else:
                self._read_mark(text[position])
                position += 1
        return self._num_shown > before

    def finish(self) -> Any:
        """Ends the text and returns the whole value. Raises ValueError if it is not complete."""
        if self._expected == "number" and not self._stack:
            self._end_number()
        if not self.done:
            raise ValueError("the JSON text ends early")
        return self.value

    def _read_string(self, text: str, position: int) -> int:
        if self._escaped:
            self._escaped = False
            self._pieces.append(text[position])
            return position + 1
        match = _UNQUOTED.match(text, position)
        assert match is not None  # it also matches nothing
        stop = match.end()
        self._pieces.append(text[position:stop])
        if stop == len(text):
            return stop
        self._pieces.append(text[stop])
        if text[stop] == "\\":
            self._escaped = True
        else:
            string = json.loads("".join(self._pieces))
            self._pieces = []
            if self._is_name:
                self._stack[-1].name = string
                self._expected = "colon"
            else:
                self._put(string)
        return stop + 1

    def _read_number(self, text: str, position: int) -> int:
        match = _NUMBER.match(text, position)
        if match is not None:
            self._pieces.append(match.group())
            return match.end()
        self._end_number()
        return position  # what follows it has not been read

    def _end_number(self) -> None:
        number = json.loads("".join(self._pieces))
        self._pieces = []
        self._put(number)

    def _read_literal(self, char: str) -> None:
        word = "".join(self._pieces) + char
        if word in _LITERALS:
            self._pieces = []
            self._put(_LITERALS[word])
        elif any(literal.startswith(word) for literal in _LITERALS):
            self._pieces = [word]
        else:
            raise ValueError(f"{word!r} does not begin a JSON value")

    def _read_mark(self, char: str) -> None:
        """Reads one character outside of strings, numbers and literals."""
        expected = self._expected
        if char in _SPACE:
            return
        if char == ":" and expected == "colon":
            self._expected = "value"
        elif char == "," and expected == "comma" and self._stack:
            self._expected = "name" if isinstance(self._stack[-1].value, dict) else "value"
        elif char == '"' and expected in ("value", "value?", "name", "name?"):
            self._is_name = expected.startswith("name")
            self._pieces = [char]
            self._expected = "string"
        elif char in "{[" and expected in ("value", "value?"):
            self._open({} if char == "{" else [])
        elif self._stack and self._closes(char):
            self._put(self._stack.pop().value)
        elif char in "-0123456789" and expected in ("value", "value?"):
            self._pieces = [char]
            self._expected = "number"
        elif char in "tfn" and expected in ("value", "value?"):
            self._pieces = [char]
            self._expected = "literal"
        else:
            raise ValueError(f"{char!r} is not valid here in a JSON text")

    def _closes(self, char: str) -> bool:
        """Returns True if `char` ends the innermost object or array here."""
        if isinstance(self._stack[-1].value, dict):
            return char == "}" and self._expected in ("comma", "name?")
        return char == "]" and self._expected in ("comma", "value?")

    def _open(self, value: dict[str, Any] | list[Any]) -> None:
        if self._stack:
            parent = self._stack[-1]
            hidden = parent.hidden or isinstance(parent.value, list)
            shape = parent.shape if hidden else parent.child()
        else:
            hidden, shape = False, self._shape
        self._stack.append(_Open(shape, value, hidden=hidden))
        self._expected = "name?" if isinstance(value, dict) else "value?"

    def _put(self, value: Any) -> None:
        """Adds a complete value to its object or array."""
        self._expected = "comma"
        if self._stack:
            self._num_shown += self._stack[-1].put(value)
        else:
            self.done = True
            self._root = value
            self._num_shown += 1
