"""Base of the backends over other vendors' APIs, which differ in their requests and in how answers are read."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, Self

from ....runtime.client.forks import forks
from ....runtime.client.streams import aiterate, iterate
from ....runtime.programs.executor import Executor
from ....runtime.protocol.errors import BoughError, EngineError, ErrorInfo, to_info
from ....runtime.protocol.program import Done, Failed, Gen, Program, ProgramEvent, Select, Use
from ....runtime.tools.registry import ToolCall
from ...backend import TEXT_ONLY
from ...diagnostics.errors import BackendError
from ...session.loops import LoopThread
from ..messages.machine import MAX_STATES, MessageMachine, ModelCall
from ..messages.surplus import Answer
from ..messages.tools import NO_TOOLS, ToolRuns, check_tools, late, limit_of
from .answers import Answering, Policy
from .chat_places import Shape, Shapes
from .http_client import ApiClient
from .wire import Wire

logger = logging.getLogger("bough.backends")

CLOSE_S = 5.0

Listener = Callable[[ProgramEvent], None]


class Answerer(Protocol):
    """Makes the values of programs."""

    def check(self, op: Gen | Select, shape: Shape, *, spec_tokens: int) -> None:
        """Checks an instruction, before anything is done. Raises BoughError: it cannot be done."""

    async def answer(self, call: ModelCall, emit: Callable[[str], None]) -> Answer: ...


class Programs:
    """Runs programs whose values `answerer` makes. Safe to use from many threads.

    All of it happens on one thread with an event loop, which is started when the first program comes.
    """

    def __init__(
        self, answerer: Answerer, aclose: Callable[[], Awaitable[None]], *, max_states: int = MAX_STATES
    ) -> None:
        self._answerer = answerer
        self._aclose = aclose
        self._max_states = max_states
        self._shapes: OrderedDict[str, Shapes] = OrderedDict()
        self._lock = threading.Lock()
        self._thread: _Thread | None = None
        self._end: weakref.finalize[..., Programs] | None = None
        self._closed = False
        forks.watch(self._after_fork)

    def _after_fork(self) -> None:
        """Forgets the thread, which is not here, with the programs whose states it keeps."""
        if self._end is not None:
            self._end.detach()
        self._thread = self._end = None
        self._shapes.clear()
        self._lock = threading.Lock()

    def run(self, program: Program, tools: Mapping[str, ToolCall]) -> Iterator[ProgramEvent]:
        thread = self._prepare(program, tools)
        yield from iterate(partial(thread.start, program, tools), partial(self.drop, program.id))

    async def arun(self, program: Program, tools: Mapping[str, ToolCall]) -> AsyncIterator[ProgramEvent]:
        thread = self._prepare(program, tools)
        events = aiterate(partial(thread.start, program, tools), partial(self.drop, program.id))
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()  # type: ignore[attr-defined]  # it is a generator

    def drop(self, program_id: str) -> None:
        self._shapes.pop(program_id, None)
        if self._thread is not None:
            self._thread.drop(program_id)

    def close(self) -> None:
        with self._lock:
            end, self._thread, self._end, self._closed = self._end, None, None, True
        if end is not None:
            end()

    def _prepare(self, program: Program, tools: Mapping[str, ToolCall]) -> _Thread:
        """Refuses what cannot be done, before any of it is."""
        check_tools(program, tools)
        shapes = self._shapes.get(program.id, Shapes()) if program.resume else Shapes()
        shapes.follow(program.ops, lambda op, shape: self._answerer.check(op, shape, spec_tokens=program.spec_tokens))
        with self._lock:
            if program.keep:
                self._shapes[program.id] = shapes
                self._shapes.move_to_end(program.id)
                while len(self._shapes) > self._max_states:
                    self._shapes.popitem(last=False)
            else:
                self._shapes.pop(program.id, None)
            if self._closed:
                raise BackendError("the backend is closed", code="closed")
            if self._thread is None:
                self._thread = _Thread(self._answerer, self._max_states)
                self._end = weakref.finalize(self, self._thread.close, self._aclose)  # who forgets to close it
            return self._thread


class _Thread:
    """The thread, and on it the programs and the tasks of their calls."""

    def __init__(self, answerer: Answerer, max_states: int) -> None:
        self._answerer = answerer
        self._thread = LoopThread("bough-api-programs")
        self._tools = ToolRuns()
        self._tasks: dict[ModelCall, asyncio.Task[None]] = {}
        self._programs = Executor(MessageMachine(self), time.monotonic, max_states=max_states)
        self._closed = False

    def start(self, program: Program, tools: Mapping[str, ToolCall], listen: Listener) -> None:
        async def begin() -> None:
            try:
                self._programs.run(program, listen, tools)
            except BoughError as error:
                listen(Failed(error=to_info(error)))
            except Exception:  # whatever it is, somebody waits for the program's end
                logger.exception("a program could not be started")
                listen(Failed(error=ErrorInfo(code="internal_error", message="the program could not be started")))

        self._thread.submit(begin())

    def drop(self, program_id: str) -> None:
        async def drop() -> None:
            self._programs.drop(program_id)

        if not self._closed:
            self._thread.submit(drop())

    def close(self, aclose: Callable[[], Awaitable[None]]) -> None:
        async def end() -> None:
            self._programs.drop_all()
            await aclose()

        self._closed = True
        with contextlib.suppress(TimeoutError):
            self._thread.submit(end()).result(CLOSE_S)
        self._tools.close()
        self._thread.close()

    # For the machine

    def begin(self, call: ModelCall) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(call))
        self._tasks[call] = task
        task.add_done_callback(lambda _: self._tasks.pop(call, None))

    def cancel(self, call: ModelCall) -> None:
        task = self._tasks.pop(call, None)
        if task is not None:
            task.cancel()

    async def _answer(self, call: ModelCall) -> None:
        result: Answer | BoughError
        try:
            if isinstance(call.op, Use):
                result = await self._use(call)
            else:
                result = await self._generate(call)
        except BoughError as error:
            result = error
        except Exception:
            logger.exception("a call of a program failed")
            result = EngineError("the call failed", code="internal_error")
        call.finish(result)

    async def _generate(self, call: ModelCall) -> Answer:
        own = call.op.timeout_s if isinstance(call.op, Gen) else None
        limit = min((seconds for seconds in (own, call.timeout_s) if seconds is not None), default=None)
        try:
            async with asyncio.timeout(limit):
                return await self._answerer.answer(call, call.emit)
        except TimeoutError:
            raise EngineError(f"not done within {limit:g} s", code="generation_timeout") from None

    async def _use(self, call: ModelCall) -> Answer:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Answer | BoughError] = loop.create_future()

        def put(result: Answer | BoughError) -> None:
            if not done.done():
                done.set_result(result)

        def put_from_elsewhere(result: Answer | BoughError) -> None:
            loop.call_soon_threadsafe(put, result)

        ticket = self._tools.start(call, put_from_elsewhere)
        limit = limit_of(call)
        try:
            async with asyncio.timeout(limit):
                result = await done
        except TimeoutError:
            raise late(call, limit) from None
        finally:
            self._tools.abandon(ticket)
        if isinstance(result, BoughError):
            raise result
        return result


@dataclass
class TokenUsage:
    """Tokens since the start, or since `reset`: of the programs that have ended, as the endpoint counts them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def reset(self) -> None:
        with self._lock:
            self.prompt_tokens = self.completion_tokens = 0

    def counted(self, events: Iterator[ProgramEvent]) -> Iterator[ProgramEvent]:
        """Passes events on, and counts."""
        closable: Any = events
        with closing(closable):
            for event in events:
                self._take(event)
                yield event

    async def acounted(self, events: AsyncIterator[ProgramEvent]) -> AsyncIterator[ProgramEvent]:
        """Passes events on, and counts."""
        closable: Any = events
        async with aclosing(closable):
            async for event in events:
                self._take(event)
                yield event

    def _take(self, event: ProgramEvent) -> None:
        if isinstance(event, Done):
            with self._lock:
                self.prompt_tokens += event.usage.prompt_tokens
                self.completion_tokens += event.usage.completion_tokens


class ApiBackend:
    """Runs programs by requests that `wire` makes through `client`. Safe to use from many threads."""

    modalities = TEXT_ONLY

    def __init__(self, model_name: str, client: ApiClient, wire: Wire, policy: Policy, *, max_states: int) -> None:
        self.model_name = model_name
        self._client = client
        self.token_usage = TokenUsage()
        self._programs = Programs(Answering(wire, policy), wire.aclose, max_states=max_states)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model_name!r})"

    @property
    def calls(self) -> int:
        """Requests made so far, repeated ones included."""
        return self._client.calls

    def run(self, program: Program, tools: Mapping[str, ToolCall] = NO_TOOLS) -> Iterator[ProgramEvent]:
        return self.token_usage.counted(self._programs.run(program, tools))

    def arun(self, program: Program, tools: Mapping[str, ToolCall] = NO_TOOLS) -> AsyncIterator[ProgramEvent]:
        return self.token_usage.acounted(self._programs.arun(program, tools))

    def drop(self, program_id: str) -> None:
        self._programs.drop(program_id)

    def flush_cache(self) -> bool:
        """Returns false: there is no cache that could be emptied from here."""
        return False

    def close(self) -> None:
        """Stops what runs, and closes all connections."""
        self._programs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
