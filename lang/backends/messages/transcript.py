"""Transcript of a branch: marks of text and of messages, and the prompt that they make for an API."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Begin(NamedTuple):
    """A message begins."""

    role: str


class End(NamedTuple):
    """The open message ends."""

    role: str


Mark = str | Begin | End


class Message(NamedTuple):
    """A message of a chat."""

    role: str
    content: str


class Prompt(NamedTuple):
    """Prompt that a generation goes on from.

    messages    those that are closed
    role        of the open message; None outside of messages
    content     of the open message so far
    loose       the text outside of all messages
    text        all of it in one, with neutral marks where messages begin and end
    """

    messages: tuple[Message, ...]
    role: str | None
    content: str
    loose: str
    text: str


def prompt_of(marks: Iterable[Mark]) -> Prompt:
    """Returns the prompt that a branch's marks make."""
    marks = list(marks)
    messages: list[Message] = []
    role: str | None = None
    content: list[str] = []
    loose: list[str] = []
    for mark in marks:
        if isinstance(mark, Begin):
            role, content = mark.role, []
        elif isinstance(mark, End):
            messages.append(Message(mark.role, "".join(content)))
            role, content = None, []
        else:
            (loose if role is None else content).append(mark)
    return Prompt(tuple(messages), role, "".join(content), "".join(loose), written(marks))


def written(marks: Iterable[Mark]) -> str:
    """Writes marks as one text. What a model's own chat template would write is not known here."""
    return "".join(text_of(mark) for mark in marks)


def text_of(mark: Mark) -> str:
    """Returns the text that one mark writes."""
    if isinstance(mark, Begin):
        return f"<|{mark.role}|>\n"
    return "<|end|>\n" if isinstance(mark, End) else mark


def open_role(marks: Sequence[Mark]) -> str | None:
    """Returns the role of the message that is open at the end."""
    last = next((mark for mark in reversed(marks) if not isinstance(mark, str)), None)
    return last.role if isinstance(last, Begin) else None


def words(text: str) -> list[str]:
    """Splits a text into words with the space before them, which stand for tokens where none are known."""
    return re.findall(r"\s*\S+|\s+$", text)
