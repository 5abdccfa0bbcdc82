"""The program's body that the caller is in, and what a body has made and left lying: coroutines that nobody awaits, and
calls that nobody appends or reads, which would do nothing without a word."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import warnings
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from ..diagnostics.errors import ProgramError
from ..diagnostics.source_lines import Place, caller

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
                message = f"{what} was neither appended nor read from, so that it did nothing: write s += {what}"
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
                f"{body.__name__} returned a {kind} that nobody runs: a program's body is a plain function or an "
                "`async def`, also behind decorators of its own",
                code="invalid_program",
                place=Place(code.co_filename, code.co_firstlineno, code.co_name),
            )


def _never_awaited(made: _Expected, in_coroutine: bool) -> ProgramError:
    advice = f"write `await {made.what}`"
    if not in_coroutine:
        reads = made.what.startswith("s.aget")
        advice = "a plain function reads with s[name]" if reads else f"make the body an `async def`, and {advice}"
    return ProgramError(
        f"{made.what} was never awaited, so that it did nothing: {advice}", code="invalid_program", place=made.place
    )


def _is_idle(coroutine: Coroutine[Any, Any, Any]) -> bool:
    return inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED


def _has_task(coroutine: Coroutine[Any, Any, Any]) -> bool:
    with contextlib.suppress(RuntimeError):  # there is no event loop here
        return any(task.get_coro() is coroutine for task in asyncio.all_tasks())
    return False
