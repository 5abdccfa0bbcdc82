"""Streams of the events of a request or a program, for threads and for asyncio; refusals become exceptions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from ..protocol.errors import to_exception
from ..protocol.program import Done, EndTexts, Failed, Program, ProgramEvent
from ..protocol.request import Request, RequestOutput
from ..tools.registry import ToolCall, ToolRegistry
from .forks import not_ours

logger = logging.getLogger("bough.engine")

Event = TypeVar("Event", RequestOutput, ProgramEvent)


class Starter(Protocol):
    """Engine as its clients see it: starts requests and programs, and cancels them.

    `start_...` may refuse by raising or by its first event; unless it raises, a terminal event always follows.
    """

    def start_request(self, request: Request, listen: Callable[[RequestOutput], None]) -> None: ...

    def abort(self, request_id: str) -> None: ...

    def start_program(
        self, program: Program, listen: Callable[[ProgramEvent], None], tools: Mapping[str, ToolCall] | None
    ) -> Callable[[], None]:
        """Returns a function that drops the program while this submission is in flight: its id may be reused later."""

    def drop(self, program_id: str) -> None: ...


class StreamingClient:
    """The half of an `EngineClient` that starts requests and programs, streams their events and ends them."""

    def __init__(self, starter: Starter, registry: ToolRegistry) -> None:
        self._starter = starter
        self._registry = registry

    @property
    def tools(self) -> Mapping[str, ToolCall]:
        return self._registry.tools

    def register_tool(self, tool: ToolCall) -> None:
        self._registry.register(tool)

    def stream(self, request: Request) -> Iterator[RequestOutput]:
        return iterate(partial(self._starter.start_request, request), partial(self._starter.abort, request.id))

    def astream(
        self, request: Request, *, settle: Callable[[RequestOutput], None] | None = None
    ) -> AsyncIterator[RequestOutput]:
        start, stop = partial(self._starter.start_request, request), partial(self._starter.abort, request.id)
        return aiterate(start, stop, settle)

    def run(self, program: Program, tools: Mapping[str, ToolCall] | None = None) -> Iterator[ProgramEvent]:
        return iterate(*self._submission(program, tools))

    def arun(
        self,
        program: Program,
        tools: Mapping[str, ToolCall] | None = None,
        *,
        settle: Callable[[Done | Failed], None] | None = None,
    ) -> AsyncIterator[ProgramEvent]:
        return aiterate(*self._submission(program, tools), settle)

    def drop(self, program_id: str) -> None:
        self._starter.drop(program_id)

    def _submission(
        self, program: Program, tools: Mapping[str, ToolCall] | None
    ) -> tuple[Callable[[Callable[[ProgramEvent], None]], None], Callable[[], None]]:
        """Returns a function that starts the submission, and one that ends this submission only."""
        ends: list[Callable[[], None]] = []

        def start(listen: Callable[[ProgramEvent], None]) -> None:
            ends.append(self._starter.start_program(program, with_whole_ends(listen), tools=tools))

        def stop() -> None:
            for end in ends:
                end()

        return start, stop


def with_whole_ends(listen: Callable[[ProgramEvent], None]) -> Callable[[ProgramEvent], None]:
    """Returns a listener that joins the parts of a Done into one event for `listen`."""
    texts: dict[int, str] = {}
    num_tokens: dict[int, int] = {}

    def hear(event: ProgramEvent) -> None:
        if isinstance(event, EndTexts):
            texts.update(event.texts)
            num_tokens.update(event.num_tokens)
            return
        if isinstance(event, Done) and texts:
            whole = {**texts, **event.texts}, {**num_tokens, **event.num_tokens}
            event = msgspec.structs.replace(event, texts=whole[0], num_tokens=whole[1])
        listen(event)

    return hear


def iterate(start: Callable[[Callable[[Event], None]], None], stop: Callable[[], None]) -> Iterator[Event]:
    """Yields the events of what `start` begins, up to the terminal one; calls `stop` if the consumer leaves before.

    `start` gets a function that takes events from any thread, and must ensure that a terminal event always comes. An
    error as the first event is a refusal and is raised, unless it names an instruction of a program.

    Raises:
        EngineStoppedError: the stream was begun before a fork and is continued in the child, which gets no events.
    """
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    process = os.getpid()
    start(events.put)
    over = False
    try:
        event = events.get()
        over = _is_last(event)
        _raise_refusal(event)
        yield event
        while not over:
            if os.getpid() != process and events.empty():
                raise not_ours()
            event = events.get()
            over = _is_last(event)
            yield event
    finally:
        if not over:
            stop()


async def aiterate(
    start: Callable[[Callable[[Event], None]], None],
    stop: Callable[[], None],
    settle: Callable[[Any], None] | None = None,
) -> AsyncIterator[Event]:
    """`iterate` for asyncio. `settle` gets the terminal event, even if the consumer has left.

    A consumer that leaves before the terminal event ends the work by `stop`: a request is aborted, a program dropped
    (`Executor.drop`).
    """
    events: _Arrivals[Event] = _Arrivals(settle)
    start(events.put)
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


class _Arrivals(Generic[Event]):
    """Queue from any thread to one task. Thousands exist at a time, and an asyncio.Queue is ten times as large."""

    __slots__ = ("_arrived", "_post", "_settle", "_waiter")

    def __init__(self, settle: Callable[[Any], None] | None = None) -> None:
        self._settle = settle
        self._post = _post_of(asyncio.get_running_loop())
        self._arrived: deque[Event] | None = None  # created on demand, since a deque is large too
        self._waiter: asyncio.Future[None] | None = None

    def put(self, event: Event) -> None:
        self._post.send(self._take, event)

    async def get(self) -> Event:
        while not self._arrived:
            self._arrived = None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._arrived.popleft()

    def _take(self, event: Event) -> None:
        if self._arrived is None:
            self._arrived = deque()
        self._arrived.append(event)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)  # the waiting task continues after this call
        if self._settle is not None and _is_last(event):
            self._settle(event)


class _Post:
    """Delivers messages from other threads on an event loop's thread, with one wake-up for all that are pending."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._letters: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._called = False

    def send(self, receiver: Callable[[Any], None], letter: Any) -> None:
        self._letters.append((receiver, letter))
        if not self._called:
            self._called = True
            with contextlib.suppress(RuntimeError):  # the consumer's loop is closed
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._called = False  # before the letters are counted: a later one schedules another call
        for _ in range(len(self._letters)):  # only those pending, so that a flood does not block the loop
            receiver, letter = self._letters.popleft()
            try:
                receiver(letter)
            except Exception:  # must not affect the receivers of later letters
                logger.exception("an event could not be taken")


_posts: weakref.WeakValueDictionary[int, _Post] = weakref.WeakValueDictionary()
"""By the id of their event loop, while a queue there uses them."""


def _post_of(loop: asyncio.AbstractEventLoop) -> _Post:
    """Returns the `_Post` of an event loop. Must be called on the loop's thread."""
    post = _posts.get(id(loop))
    if post is None:
        post = _posts[id(loop)] = _Post(loop)
    return post


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
