"""Event loops for callers that have none: the process's shared loop on a thread, and a loop for a single call."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from .body import in_body, wait_for

Result = TypeVar("Result")

_CLOSE_S = 5.0


class LoopThread:
    """An event loop on a daemon thread of its own. It goes on when a coroutine there stops it, or calls sys.exit."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Runs it there, with the caller's context variables. Cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Cancels what runs there, and waits some seconds for its end."""
        with contextlib.suppress(RuntimeError):  # closed already
            self._loop.call_soon_threadsafe(self._stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_S)

    def _stop(self) -> None:
        self._closing = True
        self._loop.stop()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # whose end cancels all tasks
            loop = runner.get_loop()
            while not self._closing:
                with contextlib.suppress(SystemExit, KeyboardInterrupt):  # they end their own task
                    loop.run_forever()


class _Background:
    """The process's own loop thread, made when it is needed. A child process that was forked makes its own."""

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
            if self._thread is None or not self._thread.is_alive:
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
