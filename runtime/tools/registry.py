"""Tools that programs call: their interface, the registry of an engine, and the threads that run them."""

from __future__ import annotations

import inspect
import logging
import re
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ..protocol.errors import EngineStoppedError, ErrorInfo, OverloadedError, RequestError
from .loops import EXITS, ToolLoops
from .quotas import Owner, Shares

logger = logging.getLogger("bough.tools")

MAX_THREADS = 64
"""Most threads that run calls. A program may have half of them, a client three quarters."""

MAX_WAITING = 4096
"""Most calls that wait for a thread. A program may have a quarter of them, a client three quarters."""

MAX_ABANDONED = 64
"""Most abandoned calls, past their time limit or of an ended program, that still occupy a thread: it cannot be stopped
from outside. With these and other calls, a client may occupy as many threads as are left for the others (dynamic
thresholds): alone half of them, and two clients a third each."""

MAX_ASYNC = 16384
"""Most calls that are awaited; shares as of MAX_WAITING."""

MAX_TOOLS = 256
DEFAULT_TIMEOUT_S = 60.0

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


class ToolCall(Protocol):
    """A function that programs may call by name.

    timeout_s    seconds that a call may take, queueing included; None: DEFAULT_TIMEOUT_S
    max_chars    most characters that it may return
    parameters   JSON Schema of its arguments, an object with `properties` and `required`; None: any names, with text
    """

    @property
    def name(self) -> str: ...

    @property
    def timeout_s(self) -> float | None: ...

    @property
    def max_chars(self) -> int: ...

    @property
    def parameters(self) -> Mapping[str, Any] | None: ...

    def call(self, arguments: dict[str, Any]) -> str | Awaitable[str]:
        """Runs the tool, on a thread of the pool. An awaitable that it returns is awaited on an event loop.

        An exception ends the program, or the isolated branch, with code "tool_failed".
        """


class ToolCallError(Exception):
    """Failure of a tool whose error to report is complete: `info`."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info


class ToolRegistry:
    """The tools of an engine, by name. Thread-safe."""

    def __init__(self) -> None:
        self.tools: Mapping[str, ToolCall] = {}
        """Replaced, never changed in place, so that readers keep a consistent mapping."""
        self._lock = threading.Lock()

    def register(self, tool: ToolCall) -> None:
        """Adds a tool. Raises RequestError if its name is invalid or taken, or there are too many."""
        check_tool(tool)
        with self._lock:
            if self.tools.get(tool.name, tool) is not tool:
                raise RequestError(f"a tool {tool.name!r} is registered already", param="tools")
            if len(self.tools) >= MAX_TOOLS and tool.name not in self.tools:
                raise RequestError(f"at most {MAX_TOOLS} tools can be registered", param="tools")
            self.tools = {**self.tools, tool.name: tool}


def is_tool_name(name: str) -> bool:
    """True for a name that a tool may have."""
    return _NAME.fullmatch(name) is not None


def check_tool(tool: ToolCall) -> None:
    """Raises RequestError if the name or a limit of `tool` is invalid."""
    if not isinstance(tool.name, str) or not is_tool_name(tool.name):
        message = f"a tool's name has 1 to 64 letters, digits and `_.-`, and begins with a letter: {tool.name!r}"
        raise RequestError(message, param="tools")
    if tool.timeout_s is not None and not 0 < tool.timeout_s < float("inf"):
        raise RequestError(f"timeout_s of tool {tool.name!r} must be a positive number of seconds", param="timeout_s")
    if tool.max_chars < 1:
        raise RequestError(f"max_chars of tool {tool.name!r} must be at least 1", param="max_chars")


@dataclass(eq=False, slots=True)
class Ticket:
    """A call in progress; once `abandoned`, its result is not reported."""

    tool: ToolCall
    arguments: dict[str, Any]
    done: Callable[[str | ErrorInfo], None]
    owner: Owner | None = None
    stage: Literal["waiting", "on a thread", "awaited", "over"] = "waiting"
    abandoned: bool = False
    future: Future[str] | None = None


class ToolRunner:
    """Runs tools: functions on a bounded number of threads, coroutines on an event loop. Thread-safe.

    Threads are started when they are needed. An abandoned call keeps its thread until it returns, and another thread
    replaces it; while too many do so, further calls are refused. Clients with the fewest calls on threads go first, and
    within a client its programs with the fewest, so that slow tools delay only their callers.
    """

    def __init__(self, *, max_threads: int = MAX_THREADS, max_abandoned: int = MAX_ABANDONED) -> None:
        self._max_threads = max_threads
        self._max_abandoned = max_abandoned
        self._changed = threading.Condition()
        self._waiting: dict[Owner | None, deque[Ticket]] = {}
        self._on_threads = Shares(max_threads // 2, 3 * max_threads // 4)
        self._in_queues = Shares(MAX_WAITING // 4, 3 * MAX_WAITING // 4)
        self._awaited = Shares(MAX_ASYNC // 4, 3 * MAX_ASYNC // 4)
        self._left_alone = Shares(max_abandoned, 3 * max_abandoned // 4)
        self._num_threads = 0
        self._num_idle = 0
        self._loops = ToolLoops()
        self._closed = False

    def start(
        self,
        tool: ToolCall,
        arguments: dict[str, Any],
        done: Callable[[str | ErrorInfo], None],
        owner: Owner | None = None,
    ) -> Ticket:
        """Queues a call; `done` gets its result or its error, on another thread.

        Raises:
            OverloadedError: too many calls wait or do not return, in all or of the owner, or no thread can be started.
            EngineStoppedError: after `close`.
        """
        ticket = Ticket(tool, arguments, done, owner)
        with self._changed:
            if self._closed:
                raise EngineStoppedError("the engine has stopped")
            self._check_room(ticket)
            self._waiting.setdefault(owner, deque()).append(ticket)
            self._in_queues.add(owner)
            if self._num_idle < self._in_queues.total and self._may_begin(owner):
                self._start_thread()
            if self._num_usable == 0:
                self._take_back(ticket)
                raise OverloadedError(f"no thread can be started; the tool {tool.name!r} cannot be called")
            self._changed.notify()
        return ticket

    def _check_room(self, ticket: Ticket) -> None:
        name, owner = ticket.tool.name, ticket.owner
        if stuck := self._who_left_too_many(owner):
            message = f"too many tool calls of {stuck}, for which nobody waits any more, have not returned yet"
            raise OverloadedError(f"{message}; the tool {name!r} cannot be called")
        full = self._in_queues.who_is_full(owner) or self._awaited.who_is_full(owner)
        if full:
            raise OverloadedError(f"too many tool calls of this {full} wait; the tool {name!r} cannot be called")
        if self._in_queues.total >= MAX_WAITING or self._awaited.total >= MAX_ASYNC:
            raise OverloadedError(f"too many tool calls wait; the tool {name!r} cannot be called")

    def _who_left_too_many(self, owner: Owner | None) -> str | None:
        if owner is None:
            return "this process" if self._left_alone.total >= self._max_abandoned else None
        if self._left_alone.who_is_full(owner) == "program":
            return "this program"
        return "this client" if self._left_alone.of_client(owner) >= self._num_left else None

    @property
    def _num_left(self) -> int:
        """Threads left for further calls, if none of those that are occupied ever returns."""
        return self._max_threads + self._max_abandoned - self._on_threads.total - self._left_alone.total

    def _has_share(self, owner: Owner | None) -> bool:
        """True if the owner may occupy one more thread."""
        num_occupied = self._on_threads.of_client(owner) + self._left_alone.of_client(owner)
        return num_occupied < self._num_left and not self._on_threads.who_is_full(owner)

    def _may_begin(self, owner: Owner | None) -> bool:
        """True if another thread may be started, and the owner may occupy it."""
        return self._num_usable < self._max_threads and self._has_share(owner)

    def abandon(self, ticket: Ticket) -> None:
        """Abandons a call: removes it from the queue, cancels it if it is awaited, or ignores its result."""
        with self._changed:
            if ticket.abandoned:
                return
            ticket.abandoned = True
            if self._closed and ticket.stage == "waiting":
                return  # `close` has dropped it
            if ticket.stage == "waiting":
                self._take_back(ticket)
            elif ticket.stage == "on a thread":
                self._left_alone.add(ticket.owner)
                if self._left_alone.total == self._max_abandoned:
                    logger.error(
                        "%d tool calls have not returned although nobody waits for them any more, the last of %r: "
                        "each keeps a thread until it does, and clients with few others can still call tools",
                        self._left_alone.total,
                        ticket.tool.name,
                    )
                self._on_threads.remove(ticket.owner)
                room = self._num_usable < self._max_threads and self._num_left > 0
                if self._in_queues.total and room:
                    self._start_thread()
                self._changed.notify()
            elif ticket.future is not None:
                ticket.future.cancel()

    @property
    def num_abandoned(self) -> int:
        """Number of abandoned calls that have not returned, and of coroutines that block an event loop."""
        return self._left_alone.total + self._loops.num_blocked

    def close(self) -> None:
        """Refuses further calls, drops those that wait, and cancels those that are awaited; threads end their calls.

        May be called twice.
        """
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
        self._loops.close()

    def _start_thread(self) -> None:
        """Starts a thread; if the system has none left, the existing ones take the work."""
        try:
            threading.Thread(target=self._work, name="bough-tool", daemon=True).start()
        except RuntimeError as error:
            logger.warning("a tool waits for a thread: %s", error)
        else:
            self._num_threads += 1

    @property
    def _num_usable(self) -> int:
        return self._num_threads - self._left_alone.total

    def _work(self) -> None:
        while (ticket := self._next()) is not None:
            self._call(ticket)

    def _next(self) -> Ticket | None:
        """Waits for and returns the next call; None if this thread is to end, at `close` or because there are too many.

        A thread that is to end is no longer counted, so that the next one does not end too.
        """
        with self._changed:
            while True:
                if self._closed or self._num_usable > self._max_threads:
                    self._num_threads -= 1  # before another one checks, or both would end
                    self._changed.notify()
                    return None
                if (ticket := self._first()) is not None:
                    self._wake_another()
                    return ticket
                self._num_idle += 1
                self._changed.wait()
                self._num_idle -= 1

    def _wake_another(self) -> None:
        """Has one more thread look, if a waiting call may start: one return can make room for calls of two owners."""
        can_wake = self._num_idle or self._num_usable < self._max_threads
        if not can_wake or not any(self._has_share(owner) for owner in self._waiting):
            return
        if self._num_idle:
            self._changed.notify()
        else:
            self._start_thread()

    def _first(self) -> Ticket | None:
        """Removes and returns the call whose turn it is; None if no waiting call may start."""
        owners = [owner for owner in self._waiting if self._has_share(owner)]
        if not owners:
            return None
        ticket = self._waiting[min(owners, key=self._on_threads.load)].popleft()
        self._left_queue(ticket)
        self._on_threads.add(ticket.owner)
        ticket.stage = "on a thread"
        return ticket

    def _take_back(self, ticket: Ticket) -> None:
        """Removes a waiting call from its queue."""
        self._waiting[ticket.owner].remove(ticket)
        self._left_queue(ticket)

    def _left_queue(self, ticket: Ticket) -> None:
        self._in_queues.remove(ticket.owner)
        queue = self._waiting.pop(ticket.owner)
        if queue:
            self._waiting[ticket.owner] = queue  # after owners with as few calls

    def _call(self, ticket: Ticket) -> None:
        try:
            result = ticket.tool.call(ticket.arguments)
            if inspect.isawaitable(result):
                self._await(ticket, result)
                return
            outcome = checked_text(ticket.tool, result)
        except BaseException as error:  # noqa: BLE001  a tool that calls sys.exit ends itself, not the thread
            outcome = _failed(ticket.tool, error)
        self._leave(ticket)
        self._deliver(ticket, outcome)

    def _leave(self, ticket: Ticket) -> None:
        with self._changed:
            ticket.stage = "over"
            self._left_thread(ticket)

    def _left_thread(self, ticket: Ticket) -> None:
        if ticket.abandoned:
            self._left_alone.remove(ticket.owner)
        else:
            self._on_threads.remove(ticket.owner)

    def _await(self, ticket: Ticket, result: Awaitable[str]) -> None:
        """Hands `result` to an event loop. If none takes it, raises the exception and leaves the ticket as it was."""

        async def wait() -> str:
            try:
                return await result
            except EXITS as error:  # a task would pass them on to the loop
                raise ToolCallError(_failed(ticket.tool, error)) from error

        def ended(future: Future[str]) -> None:
            with self._changed:
                self._awaited.remove(ticket.owner)
                ticket.stage = "over"
            try:
                outcome = checked_text(ticket.tool, future.result())
            except CancelledError:
                loop.soon(lambda: _close_unbegun(result))
                outcome = tool_failed(ticket.tool.name, "it was cancelled")
            except BaseException as error:  # noqa: BLE001  whatever a tool raises, its caller hears of it
                outcome = _failed(ticket.tool, error)
            self._deliver(ticket, outcome)

        waiting = wait()
        try:
            loop = self._loops.free()
            future = loop.run(ticket.tool.name, waiting)
        except BaseException:
            waiting.close()
            _close_unbegun(result)
            raise
        with self._changed:
            self._awaited.add(ticket.owner)
            self._left_thread(ticket)
            ticket.stage = "awaited"
            ticket.future = future
            if ticket.abandoned:  # while the function that created it ran
                future.cancel()
        future.add_done_callback(ended)

    def _deliver(self, ticket: Ticket, outcome: str | ErrorInfo) -> None:
        if ticket.abandoned:
            return
        try:
            ticket.done(outcome)
        except BaseException:
            logger.exception("the caller of tool %s failed on its result", ticket.tool.name)


def _close_unbegun(result: Awaitable[str]) -> None:
    """Closes a coroutine that was cancelled before it started, about which Python would warn."""
    if inspect.iscoroutine(result) and inspect.getcoroutinestate(result) == inspect.CORO_CREATED:
        result.close()


def unknown_tool(index: int, name: str, known: Iterable[str]) -> RequestError:
    """Returns the error for the instruction `index`, which names a tool that is not registered."""
    names = ", ".join(map(repr, sorted(known)[:20])) or "none"
    message = f"instruction {index} uses the tool {name[:100]!r}, which is not registered; there are: {names}"
    return RequestError(message, code="unknown_tool", param="ops")


def checked_text(tool: ToolCall, result: object) -> str | ErrorInfo:
    """Returns a tool's result if it is Unicode text within its limit, else an error."""
    if not isinstance(result, str):
        return tool_failed(tool.name, f"it returned a {type(result).__name__}, not a text")
    if len(result) > tool.max_chars:
        return tool_failed(tool.name, f"it returned {len(result)} characters, but max_chars is {tool.max_chars}")
    try:
        result.encode()
    except UnicodeEncodeError:
        return tool_failed(tool.name, "it returned text that is not Unicode (a lone surrogate)")
    return result


def tool_failed(name: str, reason: str) -> ErrorInfo:
    return ErrorInfo(code="tool_failed", message=f"the tool {name!r} failed: {reason}", param=name)


def _failed(tool: ToolCall, error: BaseException) -> ErrorInfo:
    if isinstance(error, ToolCallError):
        return error.info
    try:
        reason = str(error)[:500]
    except BaseException:  # noqa: BLE001  the class is the tool's
        reason = ""
    return tool_failed(tool.name, f"{type(error).__name__}{': ' if reason else ''}{reason}")
