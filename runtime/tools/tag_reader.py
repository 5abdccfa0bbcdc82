"""Splits generated text into ordinary text and tool calls, piece by piece."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .forms import CallForm


class Said(NamedTuple):
    """A piece of ordinary text."""

    text: str


class Called(NamedTuple):
    """A piece of call number `position`: the first has its `name`, further ones add to its `arguments`."""

    position: int
    name: str | None = None
    arguments: str = ""


class ValueEnd:
    """Finds the end of a JSON value that is read piece by piece, by its brackets."""

    def __init__(self) -> None:
        self.ended = False
        self._in_string = self._escaped = False
        self._depth = 0

    def feed(self, text: str, start: int = 0) -> int:
        """Reads `text` from `start` on; returns the index at which the value ends, or its length if it continues."""
        for stop in range(start, len(text)):
            if self.ended:
                return stop
            char = text[stop]
            if self._in_string:
                self._in_string = self._escaped or char != '"'
                self._escaped = char == "\\" and not self._escaped
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                self.ended = self._depth <= 0
        return len(text)


class TagReader:
    """Reader of text with calls in the model's own form, as its grammar ensures; passes everything on as it comes.

    Held text is read from `_at` on and not cut within a push, so that a push takes time linear in the text. The text
    between a name and its arguments begins with a character that no name contains.
    """

    def __init__(self, form: CallForm, names: Iterable[str]) -> None:
        self._form = form
        self._begins = {name: form.begin(name) for name in names}
        self._longest = max(map(len, self._begins.values()), default=0)
        self._held = ""
        self._at = 0
        self._blank: list[str] = []  # white space that is dropped if a call comes next
        self._num_calls = 0
        self._value: ValueEnd | None = None  # of the current call
        self._said = False

    def push(self, text: str) -> list[Said | Called]:
        self._held, self._at = self._held[self._at :] + text, 0
        pieces: list[Said | Called] = []
        while self._step(pieces):
            pass
        return pieces

    def finish(self) -> list[Said | Called]:
        """Returns the text held back so far: the beginning of a call counts as text, the end of one is dropped."""
        held = self._held[self._at :]
        if self._value is not None or not (rest := "".join((*self._blank, held))):
            return []
        return [Said(rest)] if held or not self._num_calls else []

    def _step(self, pieces: list[Said | Called]) -> bool:
        """Reads the next part of the held text; returns False if more input is needed."""
        if self._value is None:
            return self._step_text(pieces)
        if not self._value.ended:
            start, self._at = self._at, self._value.feed(self._held, self._at)
            if self._at > start:
                pieces.append(Called(self._num_calls - 1, arguments=self._held[start : self._at]))
            return self._value.ended
        after = self._form.after
        if self._num_held < len(after) and after.startswith(self._held[self._at :]):
            return False
        if self._held.startswith(after, self._at):
            self._at += len(after)
        self._value = None
        self._said = False
        return True

    def _step_text(self, pieces: list[Said | Called]) -> bool:
        trigger = self._form.trigger
        if not self._held.startswith(trigger, self._at):
            start, self._at = self._at, find_mark(self._held, trigger, self._at)
            self._say(self._held[start : self._at], pieces)
            return self._held.startswith(trigger, self._at)
        name = self._name_here()
        if name is not None:
            pieces.append(Called(self._num_calls, name=name))
            self._num_calls += 1
            self._at, self._blank = self._at + len(self._begins[name]), []
            self._value = ValueEnd()
            return True
        if self._num_held < self._longest:
            held = self._held[self._at :]
            if any(begin.startswith(held) for begin in self._begins.values()):
                return False
        self._say(trigger, pieces)  # no known call
        self._at += len(trigger)
        return True

    @property
    def _num_held(self) -> int:
        return len(self._held) - self._at

    def _name_here(self) -> str | None:
        """Returns the name of the call that begins here; None if no known one does."""
        form, start = self._form, self._at + len(self._form.before)
        stop = self._held.find(form.between, start, self._at + self._longest)
        name = self._held[start : max(stop, start)]
        return name if name in self._begins and self._held.startswith(form.before, self._at) else None

    def _say(self, text: str, pieces: list[Said | Called]) -> None:
        if not self._said and not text.strip():
            self._blank.append(text)
            return
        if text:
            pieces.append(Said("".join((*self._blank, text))))
            self._blank, self._said = [], True


def find_mark(text: str, mark: str, start: int = 0) -> int:
    """Finds the index at which `mark`, or a prefix of it at the end, begins in `text`; the length of `text` if none.

    The search begins at `start`.
    """
    found = text.find(mark, start)
    if found >= 0:
        return found
    tails = range(max(start, len(text) - len(mark) + 1), len(text))
    return next((index for index in tails if mark.startswith(text[index:])), len(text))
