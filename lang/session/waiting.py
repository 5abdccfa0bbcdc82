"""Waits: of threads on a lock, of tasks for news that others bring, of plain functions on an event loop without holding
it up, and of callers that have no loop."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Self, TypeVar

import greenlet

Result = TypeVar("Result")


class Monitor:
    """Lock whose `threading.Condition` is made when the first thread waits: most programs are waited for by tasks."""

    __slots__ = ("_condition", "_lock")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._condition: threading.Condition | None = None

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def acquire(self) -> None:
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    def wait(self) -> None:
        """Gives the lock away until another thread notifies. It must be held."""
        if self._condition is None:
            self._condition = threading.Condition(self._lock)
        self._condition.wait()

    def notify_all(self) -> None:
        """Wakes all threads that wait. The lock must be held."""
        if self._condition is not None:
            self._condition.notify_all()


class Waiter:
    """A task that waits until `done`."""

    __slots__ = ("_loop", "_thread", "done", "future")

    def __init__(self, done: Callable[[], bool]) -> None:
        self.done = done
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.future: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> None:
        if threading.get_ident() == self._thread:
            self._resolve()
        else:
            with contextlib.suppress(RuntimeError):  # its event loop is closed
                self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


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


_CLOSE_S = 5.0


class LoopThread:
    """An event loop on a daemon thread of its own."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Runs it there, with the caller's context variables. Cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Cancels what runs there, and waits some seconds for its end."""
        with contextlib.suppress(RuntimeError):  # closed already
            self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # whose end cancels all tasks
            runner.get_loop().run_forever()


class _Background:
    """The process's own loop thread, made when it is first needed. A child process that was forked makes its own."""

    def __init__(self) -> None:
        self.forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.forget)
        atexit.register(self._close)

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None

    def get(self) -> LoopThread:
        with self._lock:
            if self._thread is None:
                self._thread = LoopThread("bough-programs")
            return self._thread

    def _close(self) -> None:
        if self._thread is not None:
            self._thread.close()


background = _Background()


def run_blocking(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, for callers that are no coroutines: also inside a body that runs on an event loop, and on
    the thread of a loop that is running (which stands still meanwhile)."""
    if in_body():
        return wait_for(work)
    if not on_a_loop():
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            return runner.run(work)
    thread = LoopThread("bough-batch")
    try:
        return result_of(thread.submit(work))
    finally:
        thread.close()


def result_of(future: Future[Result]) -> Result:
    """Waits for what a loop thread does; leaving by an exception, such as KeyboardInterrupt, cancels it."""
    try:
        if in_body():
            return wait_for(asyncio.wrap_future(future))
        return future.result()
    except CancelledError as error:
        raise RuntimeError("the event loop that ran it was closed") from error
    finally:
        future.cancel()


def on_a_loop() -> bool:
    """An event loop is running on this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
