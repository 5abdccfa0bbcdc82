"""Events of one request or program as an iterator, for threads and for asyncio; errors as exceptions."""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar

from .errors import BoughError, EngineError, EngineStoppedError, OverloadedError, RequestError
from .program import Done, Failed, ProgramEvent
from .request import ErrorInfo, RequestOutput

Event = TypeVar("Event", RequestOutput, ProgramEvent)

_REFUSALS = ("invalid", "unsupported", "context_length", "empty_prompt", "grammar_too_complex", "state_not_found")


def to_exception(error: ErrorInfo) -> BoughError:
    """The exception to raise for an error that came back as data."""
    if error.code.startswith(_REFUSALS):
        return RequestError(error.message, code=error.code, param=error.param)
    if error.code == OverloadedError.code:
        return OverloadedError(error.message)
    if error.code == EngineStoppedError.code:
        return EngineStoppedError(error.message)
    return EngineError(error.message, code=error.code, param=error.param)


def to_info(error: BoughError) -> ErrorInfo:
    return ErrorInfo(code=error.code, message=error.message, param=error.param)


def iterate(start: Callable[[Callable[[Event], None]], None], stop: Callable[[], None]) -> Iterator[Event]:
    """Events of what `start` begins, the last included; `stop` is called if the consumer leaves before it.

    `start` is given a function to send events to, from any thread, and must see to it that the last one always
    comes. An error as the very first event is a refusal, and raised, unless an instruction of a program is to blame.
    """
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    start(events.put)
    over = False
    try:
        event = events.get()
        over = _is_last(event)
        _raise_refusal(event)
        yield event
        while not over:
            event = events.get()
            over = _is_last(event)
            yield event
    finally:
        if not over:
            stop()


async def aiterate(start: Callable[[Callable[[Event], None]], None], stop: Callable[[], None]) -> AsyncIterator[Event]:
    """The same for asyncio."""
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[Event] = asyncio.Queue()

    def put(event: Event) -> None:
        with contextlib.suppress(RuntimeError):  # the consumer's loop is closed: nobody listens any more
            loop.call_soon_threadsafe(events.put_nowait, event)

    start(put)
    over = False
    try:
        event = await events.get()
        over = _is_last(event)
        _raise_refusal(event)
        yield event
        while not over:
            event = await events.get()
            over = _is_last(event)
            yield event
    finally:
        if not over:
            stop()


def _is_last(event: RequestOutput | ProgramEvent) -> bool:
    return event.finish is not None if isinstance(event, RequestOutput) else isinstance(event, (Done, Failed))


def _raise_refusal(event: RequestOutput | ProgramEvent) -> None:
    error = None
    if isinstance(event, RequestOutput) and event.finish is not None:
        error = event.finish.error
    elif isinstance(event, Failed) and event.index is None:
        error = event.error
    if error is not None:
        raise to_exception(error)
