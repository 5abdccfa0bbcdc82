"""Running bodies of programs: finds the caller's body, lets plain functions wait on an event loop without blocking it,
and reports what a body leaves unused: coroutines that are not awaited, and calls that are neither appended nor read,
which would otherwise do nothing silently."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

import greenlet

from ..diagnostics.errors import ProgramError
from ..diagnostics.source_lines import Place, caller, users_lines
from ..record.variables import Slot

Result = TypeVar("Result")

_MAX_KEPT = 64
"""More are looked through for those that have begun."""


class Scope(NamedTuple):
    """A body that is being run, and the one that it was called from.

    session   the run that it belongs to
    state     its `State`
    on_loop   it runs on an event loop's thread: a coroutine, or in a greenlet
    """

    session: Any
    state: Any
    on_loop: bool
    outer: Scope | None


current: ContextVar[Scope | None] = ContextVar("bough_scope", default=None)


def inside(session: object) -> bool:
    """The caller's code is part of that program's body, or was called by it."""
    scope = current.get()
    while scope is not None:
        if scope.session is session:
            return True
        scope = scope.outer
    return False


class Called(Protocol):
    """A call of another program, which may be appended or read later."""

    @property
    def is_unused(self) -> bool: ...


class Promised(Coroutine[Any, Any, Result]):
    """A coroutine that says what to write when it is taken for its result.

    >>> Promised(s._aget("city", None), "await s.aget('city')")
    """

    __slots__ = ("_advice", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, Result], advice: str) -> None:
        self._coroutine = coroutine
        self._advice = advice

    def __await__(self) -> Generator[Any, None, Result]:
        return self._coroutine.__await__()

    @users_lines
    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    @users_lines
    def throw(self, *exception: Any) -> Any:
        return self._coroutine.throw(*exception)

    def close(self) -> None:
        self._coroutine.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("cr_", "__")):  # what asyncio and inspect ask coroutines for
            return getattr(self._coroutine, name)
        raise AttributeError(f"this was not awaited, and has no {name!r}: write {self._advice}")

    def _refuse(self, *_: object) -> NoReturn:
        self._coroutine.close()  # otherwise Python warns, too
        message = f"this was not awaited, and has no value yet: write {self._advice}"
        raise ProgramError(message, code="invalid_program", place=caller())

    __getitem__ = __iter__ = __add__ = __radd__ = __lt__ = __gt__ = __int__ = __float__ = _refuse


class _Expected(NamedTuple):
    coroutine: Coroutine[Any, Any, Any]
    what: str
    place: Place


class Awaited:
    """The coroutines and calls that a body has been given, until they begin."""

    def __init__(self) -> None:
        self._made: list[_Expected] = []
        self._called: list[tuple[Called, str, Place]] = []

    def expect(self, called: Called, what: str) -> None:
        """The body has made the call `what`, and will append it or read from it."""
        if len(self._called) > _MAX_KEPT:
            self._called = [call for call in self._called if call[0].is_unused]
        self._called.append((called, what, caller()))

    def watch(self, coroutine: Coroutine[Any, Any, Any], what: str) -> None:
        """The body's caller was given `coroutine` by the call `what`."""
        if len(self._made) > _MAX_KEPT:
            self._made = [made for made in self._made if _is_idle(made.coroutine)]
        self._made.append(_Expected(coroutine, what, caller()))

    def check(self, body: Callable[..., Any], result: object) -> None:
        """The body has returned `result`.

        Raises:
            ProgramError: that, or what it was given, is a coroutine that never began.
        """
        for called, what, place in self._called:
            if called.is_unused and called is not result:
                message = f"{what} was neither appended nor read from, so it did nothing: write s += {what}"
                warnings.warn_explicit(message, UserWarning, place.file, place.line)
        self._called = []
        idle = [made for made in self._made if _is_idle(made.coroutine) and not _has_task(made.coroutine)]
        self._made = []
        returned = inspect.iscoroutine(result) or inspect.isgenerator(result)
        for coroutine in (*(made.coroutine for made in idle), *((result,) if returned else ())):
            coroutine.close()
        if idle:
            raise _never_awaited(idle[0], inspect.iscoroutinefunction(body))
        if returned:
            kind = "coroutine" if inspect.iscoroutine(result) else "generator"
            code = inspect.unwrap(body).__code__
            raise ProgramError(
                f"{body.__name__} returned a {kind} that never runs: a program's body must be a plain function or an "
                "`async def`, even with decorators",
                code="invalid_program",
                place=Place(code.co_filename, code.co_firstlineno, code.co_name),
            )


def _never_awaited(made: _Expected, in_coroutine: bool) -> ProgramError:
    advice = f"write `await {made.what}`"
    if not in_coroutine:
        reads = made.what.startswith("s.aget")
        advice = "a plain function reads with s[name]" if reads else f"make the body an `async def`, and {advice}"
    return ProgramError(
        f"{made.what} was never awaited, so it did nothing: {advice}", code="invalid_program", place=made.place
    )


def _is_idle(coroutine: Coroutine[Any, Any, Any]) -> bool:
    return inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED


def _has_task(coroutine: Coroutine[Any, Any, Any]) -> bool:
    with contextlib.suppress(RuntimeError):  # there is no event loop here
        return any(task.get_coro() is coroutine for task in asyncio.all_tasks())
    return False


class Pending(Protocol):
    """A value that is asked for until it is right."""

    slot: Slot

    def over(self) -> bool:
        """The latest value is there, or will never be."""

    def judge(self) -> None:
        """Takes the latest value, or asks again."""


@dataclass(slots=True)
class Body:
    """The program's body: the state that it appends to, the thread that it records on (0: none yet), whether it has
    returned, what it awaits, how many other programs it has called, the values that are asked for until they are right,
    the branches that hold attempts at them, and those with a check that have not been read, with the `Branch` of each.
    """

    state: object = None
    thread: int = 0
    ended: bool = False
    awaited: Awaited = field(default_factory=Awaited)
    num_calls: int = 0
    attempts: list[Pending] = field(default_factory=list)
    trials: set[int] = field(default_factory=set)
    unread: dict[Slot, Any] = field(default_factory=dict)


# Plain functions on an event loop

Watch = Callable[[float], None]
"""Is told for how many seconds a body has held the event loop, each time that it lets go of it."""


class _Greenlet(greenlet.greenlet):
    """A function that may wait for the event loop, on the loop's own thread."""


def in_body() -> bool:
    """The caller runs in a function that `spawn` has started: it may use `wait_for`."""
    return isinstance(greenlet.getcurrent(), _Greenlet)


def wait_for(awaitable: Awaitable[Result]) -> Result:
    """The result of `awaitable`, for a function that runs under `spawn`; the event loop does other work meanwhile.

    Being cancelled is raised here, as it is at an `await`.
    """
    result: Result = greenlet.getcurrent().parent.switch(awaitable)
    return result


async def spawn(body: Callable[[], Result], watch: Watch | None = None) -> Result:
    """The result of `body`, a plain function that may use `wait_for`. It shares the task's context variables."""
    child = _Greenlet(body)
    child.gr_context = greenlet.getcurrent().gr_context
    outcome = _resume(child, watch, child.switch)
    while not child.dead:
        try:
            value = await outcome
        except GeneratorExit:
            _abandon(child)
            raise
        except BaseException as error:  # noqa: BLE001  raised where the body waits
            outcome = _resume(child, watch, child.throw, type(error), error, error.__traceback__)
        else:
            outcome = _resume(child, watch, child.switch, value)
    result: Result = outcome
    return result


def _resume(child: _Greenlet, watch: Watch | None, enter: Callable[..., Any], *values: Any) -> Any:
    """Lets the body go on: what it waits for next or, if it is dead then, what it has returned."""
    child.parent = greenlet.getcurrent()  # where it comes back to, which is not always where it was started
    if watch is None:
        return enter(*values)
    start = time.monotonic()
    try:
        return enter(*values)
    finally:
        watch(time.monotonic() - start)


def _abandon(child: _Greenlet) -> None:
    """Ends a body whose task was thrown away while it waited, so that its `finally` blocks run."""
    try:
        child.parent = greenlet.getcurrent()
        outcome = child.throw(greenlet.GreenletExit)
    except (greenlet.error, ValueError):  # another thread collects it: greenlet ends it on its own
        return
    if not child.dead:
        if inspect.iscoroutine(outcome):
            outcome.close()
        raise RuntimeError("a program's body kept waiting although it was being discarded")
