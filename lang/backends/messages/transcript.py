"""Transcript of a branch: its marks of text and messages, and the prompt that they form for an API."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ....runtime.protocol.program import MadeCall
from ....runtime.tools.calls import WrittenCall, said_of


class Begin(NamedTuple):
    """A message begins."""

    role: str


class End(NamedTuple):
    """The open message ends."""

    role: str


class Calls(NamedTuple):
    """The model has called tools, and ends its message with that. `text` is what stands for the calls."""

    calls: tuple[WrittenCall, ...]
    text: str


class Results(NamedTuple):
    """Results of the calls before it; the assistant's next message begins."""

    calls: tuple[MadeCall, ...]


Mark = str | Begin | End | Calls | Results


class Message(NamedTuple):
    """A message of a chat.

    calls       of tools, that an assistant's message ends with
    call_id     the call whose result it is, of a message of the role "tool"; `failed`: the call has failed
    """

    role: str
    content: str
    calls: tuple[NumberedCall, ...] = ()
    call_id: str = ""
    failed: bool = False


class NumberedCall(NamedTuple):
    """A call with its id, which its result names."""

    id: str
    name: str
    arguments: dict[str, Any] | str


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
        elif isinstance(mark, Calls):
            calls = tuple(NumberedCall(f"call_{len(messages)}_{i}", *call) for i, call in enumerate(mark.calls))
            messages.append(Message("assistant", "".join(content).strip(), calls))
            content = []
        elif isinstance(mark, Results):
            ids = [call.id for call in messages[-1].calls]
            messages += [
                Message("tool", said_of(call), call_id=call_id, failed=call.result is None)
                for call_id, call in zip(ids, mark.calls, strict=True)
            ]
        else:
            (loose if role is None else content).append(mark)
    return Prompt(tuple(messages), role, "".join(content), "".join(loose), written(marks))


def written(marks: Iterable[Mark]) -> str:
    """Writes marks as one text. What a model's own chat template would write is not known here."""
    return "".join(text_of(mark) for mark in marks)


def text_of(mark: Mark) -> str:
    """Returns the text that one mark writes."""
    match mark:
        case Begin(role=role):
            return f"<|{role}|>\n"
        case End():
            return "<|end|>\n"
        case Calls(text=text):
            return text
        case Results(calls=calls):
            told = "".join(f"<|tool|>\n{said_of(call)}<|end|>\n" for call in calls)
            return f"<|end|>\n{told}<|assistant|>\n"
        case str():
            return mark


def open_role(marks: Sequence[Mark]) -> str | None:
    """Returns the role of the message that is open at the end."""
    last = next((mark for mark in reversed(marks) if isinstance(mark, Begin | End)), None)
    return last.role if isinstance(last, Begin) else None


def words(text: str) -> list[str]:
    """Splits a text into words with the space before them, which stand for tokens where none are known."""
    return re.findall(r"\s*\S+|\s+$", text)
