"""Control tokens in text: finding those a template wrote, and hiding those a user typed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import regex

_PRIVATE_USE = range(0xE000, 0xF900)


class ControlTokens:
    """The texts of a model's control tokens. Where one text contains another, the longest wins.

    `strips_left` and `strips_right` name those that swallow the white space before and after them.
    """

    def __init__(
        self,
        ids: Mapping[str, int],
        *,
        strips_left: Iterable[str] = (),
        strips_right: Iterable[str] = (),
    ) -> None:
        self.ids = {text: token for text, token in ids.items() if text}
        self._strips_left, self._strips_right = frozenset(strips_left), frozenset(strips_right)
        self._pattern = regex.compile(r"\L<names>" if self.ids else "(?!)", names=list(self.ids), ignore_unused=True)
        named = [text for text in self.ids if not text[0].isalnum()]
        self._beginnings = frozenset(text[:stop] for text in named for stop in range(1, len(text)))
        self._longest_beginning = max(map(len, self._beginnings), default=0)

    def split(self, text: str) -> list[str | int]:
        """The text cut at control tokens: their ids, and the pieces between them (never empty)."""
        pieces: list[str | int] = []
        start, strip = 0, False
        for match in self._pattern.finditer(text):
            name = match.group()
            before = text[start : match.start()]
            before = before.lstrip() if strip else before
            before = before.rstrip() if name in self._strips_left else before
            pieces += [before, self.ids[name]] if before else [self.ids[name]]
            start, strip = match.end(), name in self._strips_right
        rest = text[start:].lstrip() if strip else text[start:]
        return [*pieces, rest] if rest else pieces

    def hide(self, text: str, mark: str, hidden: dict[str, int]) -> str:
        """The text with each control token's text replaced by a placeholder: its number in `hidden` between marks.

        What is not in `hidden` yet is added. A beginning of a control token at the end of the text is hidden too, since
        a template may put more text there.
        """

        def placeholder(found: str) -> str:
            return f"{mark}{hidden.setdefault(found, len(hidden))}{mark}"

        pieces: list[str] = []
        start = 0
        for match in self._pattern.finditer(text):
            pieces += [text[start : match.start()], placeholder(match.group())]
            start = match.end()
        rest = text[start:]
        unfinished = self._unfinished(rest)
        pieces.append(rest[: len(rest) - unfinished])
        if unfinished:
            pieces.append(placeholder(rest[-unfinished:]))
        return "".join(pieces)

    def _unfinished(self, text: str) -> int:
        """Length of the longest end of `text` that begins a control token. Words do not count: they are too common."""
        lengths = range(min(self._longest_beginning, len(text)), 0, -1)
        return next((length for length in lengths if text[-length:] in self._beginnings), 0)


class Shield:
    """Hides the control tokens that a user typed while a template is rendered, and puts them back as plain text.

    One shield serves one rendering: `hide` everything that goes into the template, render, `split` the result.
    """

    def __init__(self, control: ControlTokens, values: Iterable[Any]) -> None:
        self._control = control
        self._hidden: dict[str, int] = {}
        used = {char for value in values for text in _strings(value) for char in text if "\ue000" <= char <= "\uf8ff"}
        # With all 6,400 of them in use the first serves anyway: a text that imitates a placeholder stays plain text.
        self._mark = next((chr(code) for code in _PRIVATE_USE if chr(code) not in used), "\ue000")
        self._placeholder = regex.compile(f"{self._mark}([0-9]+){self._mark}")

    def hide(self, value: Any) -> Any:
        """A copy of a JSON value in which no string holds a control token's text."""
        if isinstance(value, str):
            return self._control.hide(value, self._mark, self._hidden)
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide(entry) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(entry) for entry in value]
        return value

    def split(self, text: str) -> list[str | int]:
        """A rendered text cut at the template's own control tokens; the users' are text again."""
        return [self.reveal(piece) if isinstance(piece, str) else piece for piece in self._control.split(text)]

    def reveal(self, text: str) -> str:
        """The text with placeholders replaced by what they stand for."""
        if self._mark not in text:
            return text
        hidden = {str(number): found for found, number in self._hidden.items()}
        restored: str = self._placeholder.sub(lambda match: hidden.get(match.group(1), match.group()), text)
        return restored


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _strings(key)
            yield from _strings(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _strings(entry)
