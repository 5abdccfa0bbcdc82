"""Which program's body the caller is in."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, NamedTuple


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
