"""Splits what was generated into reasoning, ordinary text and calls of tools, piece by piece."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from ...constrain.workers.decoders import json_decoder
from ...runtime.tokenizer.reasoning import THINK
from ...runtime.tools.forms import CLOSE_TAG, OPEN_TAG
from ...runtime.tools.tag_reader import Called, Said, TagReader, ValueEnd, find_mark
from .tools import Toolbox

_HEADER = re.compile(r'\s*\{\s*"name"\s*:\s*"((?:[^"\\]|\\.)*)"\s*,\s*"arguments"\s*:\s*')
_BLOCK = re.compile(rf"{OPEN_TAG}(.*?)(?:{CLOSE_TAG}|$)", re.DOTALL)


class Thought(NamedTuple):
    """A piece of the reasoning before the answer."""

    text: str


Piece = Thought | Said | Called


class Reader(Protocol):
    """Splits generated text into what is said and what is called, piece by piece."""

    def push(self, text: str) -> Sequence[Piece]: ...

    def finish(self) -> Sequence[Piece]:
        """Returns what was held back until now."""


def reader(toolbox: Toolbox, reasoning_end: str | None = None) -> Reader:
    """The reader for an answer to a request with these tools, which may begin with reasoning."""
    result = _call_reader(toolbox)
    return result if reasoning_end is None else ReasoningReader(reasoning_end, THINK[0], result)


def _call_reader(toolbox: Toolbox) -> Reader:
    if toolbox.mode == "none":
        return TextReader()
    if toolbox.form is not None:
        return TagReader(toolbox.form, toolbox.functions)
    return CallReader() if toolbox.mode == "required" else AutoReader(toolbox)


class TextReader:
    """Everything is ordinary text."""

    def push(self, text: str) -> list[Piece]:
        return [Said(text)] if text else []

    def finish(self) -> list[Piece]:
        return []


class CallReader:
    """The text is one call, by its grammar; its arguments are passed on as they come."""

    def __init__(self) -> None:
        self._head = ""
        self._started = False
        self._value = ValueEnd()

    def push(self, text: str) -> list[Piece]:
        if self._started:
            return self._arguments(text)
        self._head += text
        header = _HEADER.match(self._head)
        if header is None or header.end() == len(self._head):  # more blanks may follow the colon
            return []
        self._started = True
        name = json.loads(f'"{header[1]}"')
        return [Called(0, name=name), *self._arguments(self._head[header.end() :])]

    def finish(self) -> list[Piece]:
        """Returns a text that ended before a call's arguments as ordinary text."""
        return [Said(self._head)] if self._head and not self._started else []

    def _arguments(self, text: str) -> list[Piece]:
        text = text[: self._value.feed(text)]
        return [Called(0, arguments=text)] if text else []


class ReasoningReader:
    """Reasoning comes first, up to a text that closes it; what follows is for another reader."""

    def __init__(self, end: str, begin: str, then: Reader) -> None:
        self._end = end
        self._begin = begin
        self._then = then
        self._held = ""
        self._any = self._closed = self._blank = False

    def push(self, text: str) -> Sequence[Piece]:
        if self._closed:
            return self._after(text)
        self._held += text
        if not self._any:
            if self._begin.startswith(self._held):
                return []
            self._held = self._held.removeprefix(self._begin).lstrip("\n")
            self._any = bool(self._held)
        start = find_mark(self._held, self._end)
        thought, self._held = self._held[:start], self._held[start:]
        pieces: list[Piece] = [Thought(thought)] if thought else []
        if self._held.startswith(self._end):
            self._closed = self._blank = True
            rest, self._held = self._held[len(self._end) :], ""
            pieces += self._after(rest)
        return pieces

    def finish(self) -> list[Piece]:
        pieces: list[Piece] = [Thought(self._held)] if self._held else []
        return [*pieces, *self._then.finish()]

    def _after(self, text: str) -> Sequence[Piece]:
        """Passes the answer on without the empty lines between the reasoning and it."""
        text = text.lstrip("\n") if self._blank else text
        self._blank = self._blank and not text
        return self._then.push(text) if text else []


class AutoReader:
    """The text may be calls, as plain JSON or between tags, or anything else; only what may be a call is held back."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox
        self._held = ""
        self._any_said = False

    def push(self, text: str) -> list[Piece]:
        self._held += text
        bare = self._held.lstrip()
        if not self._any_said and (not bare or bare[0] in "{["):
            return []
        start = find_mark(self._held, OPEN_TAG)
        said, self._held = self._held[:start], self._held[start:]
        if not said.strip() and not self._any_said:
            self._held = said + self._held
            return []
        self._any_said = self._any_said or bool(said)
        return [Said(said)] if said else []

    def finish(self) -> list[Piece]:
        calls = parse_calls(self._held, self._toolbox.functions)
        if not calls:
            return [Said(self._held)] if self._held else []
        if not self._toolbox.parallel:
            calls = calls[:1]
        return [
            piece
            for position, (name, arguments) in enumerate(calls)
            for piece in (Called(position, name=name), Called(position, arguments=arguments))
        ]


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"")
    parameters: msgspec.Raw = msgspec.Raw(b"{}")


_CALL, _CALLS = json_decoder(_Call), json_decoder(list[_Call])


def parse_calls(text: str, names: Mapping[str, object]) -> list[tuple[str, str]]:
    """Reads the calls that make up the text, as (name, arguments as JSON text); none if it is not calls of `names`."""
    text = text.strip()
    blocks = [match[1] for match in _BLOCK.finditer(text)] if OPEN_TAG in text else [text]
    calls: list[tuple[str, str]] = []
    try:
        for block in blocks:
            decoder = _CALLS if block.lstrip().startswith("[") else _CALL
            decoded: Any = decoder.decode(block.encode())
            for call in decoded if isinstance(decoded, list) else [decoded]:
                calls.append((call.name, _arguments_text(call)))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return []
    return calls if all(name in names for name, _ in calls) else []


def _arguments_text(call: _Call) -> str:
    """Returns the arguments as JSON text; some models write them as JSON inside a string.

    Raises:
        msgspec.DecodeError: the arguments are no JSON object.
    """
    text = bytes(call.arguments or call.parameters)
    if text.startswith(b'"'):
        text = msgspec.json.decode(text, type=str).encode()
    msgspec.json.decode(text, type=dict[str, Any])
    return text.decode()
