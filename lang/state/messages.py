"""Messages of a conversation as instructions for a backend, and their tokens."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, Literal, TypeVar

import msgspec

from ...runtime.protocol.program import (
    BranchFailed,
    Done,
    Failed,
    Fork,
    Op,
    Program,
    ProgramEvent,
    RoleBegin,
    RoleEnd,
    Text,
)
from ..backend import Backend
from ..diagnostics.errors import ProgramError, UnsupportedError
from ..diagnostics.source_lines import caller
from ..session.body import in_body, wait_for
from ..session.loops import on_a_loop

Result = TypeVar("Result")

_TOO_LONG = "context_length_exceeded"


class ChatMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message of a conversation; one of the role "text" is text outside of messages."""

    role: Literal["system", "user", "assistant", "text"]
    content: str


def ops_of(messages: Sequence[ChatMessage], branch: int = 0) -> Iterator[Op]:
    """The instructions that append messages to a branch."""
    for message in messages:
        if message.role != "text":
            yield RoleBegin(branch, message.role)
        if message.content:
            yield Text(branch, (message.content,))
        if message.role != "text":
            yield RoleEnd(branch)


def events_of(backend: Backend, namespace: str, ops: Sequence[Op]) -> Iterator[ProgramEvent]:
    """Runs instructions and yields their events.

    Raises:
        ProgramError: the program failed.
    """
    program = Program(id=secrets.token_hex(16), ops=tuple(ops), namespace=namespace, deltas=False)
    events: Any = backend.run(program)
    with closing(events):
        for event in events:
            if isinstance(event, Failed):
                raise ProgramError(event.error.message, code=event.error.code, param=event.error.param, place=caller())
            yield event


def count_tokens(
    backend: Backend, namespace: str, messages: Sequence[ChatMessage], num_first: int = 0
) -> tuple[float, float]:
    """Counts the tokens of the first `num_first` messages, and of all. Nothing is computed.

    More than the context holds are infinitely many.

    Raises:
        UnsupportedError: the backend cannot count.
    """
    ops = (*ops_of(messages[:num_first]), Fork(0, (1,), isolated=True), *ops_of(messages[num_first:], 1))
    found: dict[int, float] = {}
    try:
        for event in events_of(backend, namespace, ops):
            if isinstance(event, BranchFailed):
                if event.error.code != _TOO_LONG:
                    raise ProgramError(event.error.message, code=event.error.code, place=caller())
                found[event.branch] = math.inf
            elif isinstance(event, Done):
                found = {**event.num_tokens, **found}
    except ProgramError as error:
        if error.code != _TOO_LONG:
            raise
        return math.inf, math.inf
    if not found.keys() >= {0, 1}:
        raise UnsupportedError(
            f"{type(backend).__name__} has no tokenizer, so it cannot count the tokens of a conversation",
            param="backend",
            place=caller(),
        )
    return found[0], found[1]


def beside_the_loop(work: Callable[[], Result], awaited: str) -> Result:
    """Does work that waits for a backend; in the body of a program on an event loop, on a thread beside it.

    Raises:
        ProgramError: it would block an event loop; `awaited` is what to write instead.
    """
    if in_body():
        return wait_for(asyncio.to_thread(work))
    if on_a_loop():
        raise ProgramError(f"this would block the event loop: use `{awaited}`", code="invalid_program", place=caller())
    return work()
