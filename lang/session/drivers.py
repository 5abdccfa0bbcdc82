"""How events reach a session: pulled by the threads that wait for them, or brought by tasks of an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial

from ...runtime.protocol.errors import BoughError
from ...runtime.protocol.program import ProgramEvent
from ..diagnostics.errors import ProgramError
from ..diagnostics.source_lines import caller
from ..record.stretch import Stretch
from . import greenlets
from .loops import on_a_loop
from .session import Session


class PullDriver:
    """Whoever waits pulls events until what it waits for is there. Needs no thread of its own.

    If several threads wait for one stretch, one pulls for all.
    """

    def start(self, session: Session, stretch: Stretch) -> None:
        stretch.events = session.events(stretch)

    def wait(self, session: Session, done: Callable[[], bool], stretch: Callable[[], Stretch | None]) -> None:
        if greenlets.in_body():  # of another program, on an event loop that must not stand still
            greenlets.wait_for(asyncio.to_thread(self._wait, session, done, stretch))
        else:
            self._wait(session, done, stretch)

    def _wait(self, session: Session, done: Callable[[], bool], stretch: Callable[[], Stretch | None]) -> None:
        with session.changed:
            while not done():
                wanted = stretch()
                # a stretch continues what those before it have begun
                target = next((s for s in session.stretches if not s.begun), wanted) if wanted is not None else None
                if target is None or target.events is None or target.pulling:
                    session.changed.wait()
                else:
                    _pull(session, target)

    def stop(self, session: Session) -> None:
        pulled = [stretch for stretch in session.stretches if stretch.pulling]
        for stretch in session.stretches:
            if stretch not in pulled:
                _close(session, stretch)
        if pulled:  # who waits there closes it at the next event, which is now, and not when some tool is done
            with contextlib.suppress(BoughError):
                session.backend.drop(session.id)


class TaskDriver:
    """A task for each stretch. The program's body runs on the event loop's thread: a coroutine, or in a greenlet."""

    __slots__ = ("_loop", "_tasks", "_thread")

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._tasks: list[asyncio.Task[None]] = []

    def attach(self) -> None:
        """The running loop is the one to use."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def start(self, session: Session, stretch: Stretch) -> None:
        self._on_loop(self._spawn, session, stretch)

    def wait(self, session: Session, done: Callable[[], bool], stretch: Callable[[], Stretch | None]) -> None:
        if greenlets.in_body():
            greenlets.wait_for(session.await_until(done))
            return
        with session.changed:
            if not done() and threading.get_ident() == self._thread and on_a_loop():
                raise ProgramError(
                    "this would block the event loop: in a coroutine, read with `await s.aget(name)`",
                    code="invalid_program",
                    place=caller(),
                )
            while not done():
                session.changed.wait()

    def stop(self, session: Session) -> None:
        self._on_loop(self._cancel)

    async def stopped(self) -> None:
        """Waits until all tasks have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_loop(self, work: Callable[..., None], *arguments: object) -> None:
        if threading.get_ident() == self._thread:
            work(*arguments)
        elif self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the session has been aborted
                self._loop.call_soon_threadsafe(work, *arguments)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _spawn(self, session: Session, stretch: Stretch) -> None:
        if session.error is not None or self._loop is None:
            session.end(stretch, session.error)
            return

        task = self._loop.create_task(_bring(session, stretch))
        self._tasks.append(task)
        task.add_done_callback(partial(self._ended, session, stretch))

    def _ended(self, session: Session, stretch: Stretch, task: asyncio.Task[None]) -> None:
        self._tasks.remove(task)
        session.end(stretch, (None if task.cancelled() else task.exception()) or session.error)


def _pull(session: Session, stretch: Stretch) -> None:
    """Takes the next event of a stretch. `session.changed` is held, but not while waiting."""
    assert stretch.events is not None
    event: ProgramEvent | None = None
    error: BaseException | None = ProgramError("waiting for the program was interrupted", code="aborted")
    stretch.pulling = True
    session.changed.release()
    try:
        event = next(stretch.events, None)
        error = None
    except BoughError as refusal:
        error = refusal
    finally:
        session.changed.acquire()
        stretch.pulling = False
        if event is None:
            session.end(stretch, error)
        else:
            session.feed(stretch, event)
        if session.error is not None or stretch.ended:
            _close(session, stretch)


def _close(session: Session, stretch: Stretch) -> None:
    """Leaves a stretch, which aborts it if it is still running."""
    close = getattr(stretch.events, "close", None)
    if close is not None:
        close()
    session.end(stretch, session.error)


async def _bring(session: Session, stretch: Stretch) -> None:
    """Takes the events of a stretch to the session, once those before it have begun."""
    before = session.stretches[: session.stretches.index(stretch)]
    await session.await_until(lambda: all(other.begun for other in before))
    events = session.aevents(stretch)
    try:
        async for event in events:
            session.feed(stretch, event)
    finally:
        aclose = getattr(events, "aclose", None)
        if aclose is not None:
            await aclose()
