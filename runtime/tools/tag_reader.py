"""Splits generated text into what is said and the calls in it, piece by piece."""

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
    """Finds where the brackets of a JSON value close that is read piece by piece."""

    def __init__(self) -> None:
        self.ended = False
        self._in_string = self._escaped = False
        self._depth = 0

    def feed(self, text: str) -> int:
        """Returns how many characters of `text` belong to the value."""
        for stop, char in enumerate(text):
            if self.ended:
                return stop
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
    """The text holds calls in a form of the model's own, as its grammar makes sure; all is passed on as it comes."""

    def __init__(self, form: CallForm, names: Iterable[str]) -> None:
        self._form = form
        self._begins = {name: form.begin(name) for name in names}
        self._held = ""
        self._blank = ""  # white space that is dropped if a call comes next
        self._num_calls = 0
        self._value: ValueEnd | None = None  # of the call under way
        self._said = False

    def push(self, text: str) -> list[Said | Called]:
        self._held += text
        pieces: list[Said | Called] = []
        while self._step(pieces):
            pass
        return pieces

    def finish(self) -> list[Said | Called]:
        """Returns what was held back until now: the beginning of a call is text, and the end of one nothing."""
        if self._value is not None or not (rest := self._blank + self._held):
            return []
        return [Said(rest)] if self._held or not self._num_calls else []

    def _step(self, pieces: list[Said | Called]) -> bool:
        """Takes the next part of what is held; False if more must come first."""
        if self._value is None:
            return self._step_text(pieces)
        if not self._value.ended:
            stop = self._value.feed(self._held)
            if stop:
                pieces.append(Called(self._num_calls - 1, arguments=self._held[:stop]))
            self._held = self._held[stop:]
            return self._value.ended
        after = self._form.after
        if len(self._held) < len(after) and after.startswith(self._held):
            return False
        self._held = self._held.removeprefix(after)
        self._value = None
        self._said = False
        return True

    def _step_text(self, pieces: list[Said | Called]) -> bool:
        trigger = self._form.trigger
        if not self._held.startswith(trigger):
            start = find_mark(self._held, trigger)
            self._say(self._held[:start], pieces)
            self._held = self._held[start:]
            return self._held.startswith(trigger)
        for name, begin in self._begins.items():
            if self._held.startswith(begin):
                pieces.append(Called(self._num_calls, name=name))
                self._num_calls += 1
                self._held, self._blank = self._held[len(begin) :], ""
                self._value = ValueEnd()
                return True
        if any(begin.startswith(self._held) for begin in self._begins.values()):
            return False
        self._say(trigger, pieces)  # no call that is known
        self._held = self._held[len(trigger) :]
        return True

    def _say(self, text: str, pieces: list[Said | Called]) -> None:
        if not self._said and not text.strip():
            self._blank += text
            return
        if text:
            pieces.append(Said(self._blank + text))
            self._blank, self._said = "", True


def find_mark(text: str, mark: str) -> int:
    """Finds where `mark` begins in `text`, perhaps to be completed by what follows; the end of `text` if nowhere."""
    start = text.find(mark)
    if start >= 0:
        return start
    tails = range(max(0, len(text) - len(mark) + 1), len(text))
    return next((index for index in tails if mark.startswith(text[index:])), len(text))
