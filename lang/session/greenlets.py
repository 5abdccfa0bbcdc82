"""Plain functions that wait on an event loop without holding it up: each runs in a greenlet of its own."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import greenlet

Result = TypeVar("Result")

Watch = Callable[[float], None]
"""Is told for how many seconds a body has held the event loop, each time that it lets go of it."""


class _Body(greenlet.greenlet):
    """A function that may wait for the event loop, on the loop's own thread."""


def in_body() -> bool:
    """The caller runs in a function that `spawn` has started: it may use `wait_for`."""
    return isinstance(greenlet.getcurrent(), _Body)


def wait_for(awaitable: Awaitable[Result]) -> Result:
    """The result of `awaitable`, for a function that runs under `spawn`; the event loop does other work meanwhile.

    Being cancelled is raised here, as it is at an `await`.
    """
    result: Result = greenlet.getcurrent().parent.switch(awaitable)
    return result


async def spawn(body: Callable[[], Result], watch: Watch | None = None) -> Result:
    """The result of `body`, a plain function that may use `wait_for`. It shares the task's context variables."""
    child = _Body(body)
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


def _resume(child: _Body, watch: Watch | None, enter: Callable[..., Any], *values: Any) -> Any:
    """Lets the body go on: what it waits for next or, if it is dead then, what it has returned."""
    child.parent = greenlet.getcurrent()  # where it comes back to, which is not always where it was started
    if watch is None:
        return enter(*values)
    start = time.monotonic()
    try:
        return enter(*values)
    finally:
        watch(time.monotonic() - start)


def _abandon(child: _Body) -> None:
    """Ends a body whose task was thrown away while it waited, so that its `finally` blocks run."""
    try:
        child.parent = greenlet.getcurrent()
        outcome = child.throw(greenlet.GreenletExit)
    except (greenlet.error, ValueError):  # another thread collects it: greenlet ends it on its own
        return
    if not child.dead:
        if inspect.iscoroutine(outcome):
            outcome.close()
        raise RuntimeError("a program's body went on to wait although it was being thrown away")
