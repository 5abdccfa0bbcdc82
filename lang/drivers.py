"""How events reach a session: pulled by the threads that wait for them, or brought by tasks of an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from ..runtime.errors import BoughError
from ..runtime.program import ProgramEvent
from .errors import ProgramError
from .session import Session
from .stretch import Stretch


class PullDriver:
    """Whoever waits pulls events until what it waits for is there. Needs no thread of its own.

    If several threads wait for one stretch, one pulls for all.
    """

    def start(self, session: Session, stretch: Stretch) -> None:
        stretch.events = session.backend.run(stretch.program)

    def wait(self, session: Session, done: Callable[[], bool], stretch: Callable[[], Stretch | None]) -> None:
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
        for stretch in session.stretches:
            if not stretch.pulling:  # else the thread that pulls closes it at the next event
                _close(session, stretch)


class TaskDriver:
    """A task for each stretch. The program's body may run on the event loop's thread or on another.

    Made on the event loop's thread.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, session: Session, stretch: Stretch) -> None:
        if threading.get_ident() == self._thread:
            self._spawn(session, stretch)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the session has been aborted
                self._loop.call_soon_threadsafe(self._spawn, session, stretch)

    def wait(self, session: Session, done: Callable[[], bool], stretch: Callable[[], Stretch | None]) -> None:
        with session.changed:
            if not done() and threading.get_ident() == self._thread:
                raise ProgramError(
                    "this would block the event loop: in an async program, read with `await s.aget(name)`",
                    code="invalid_program",
                )
            while not done():
                session.changed.wait()

    def stop(self, session: Session) -> None:
        for task in self._tasks:
            task.cancel()

    async def stopped(self) -> None:
        """Waits until all tasks have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, session: Session, stretch: Stretch) -> None:
        if session.error is not None:
            session.end(stretch, session.error)
            return

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            session.end(stretch, (None if task.cancelled() else task.exception()) or session.error)

        task = self._loop.create_task(_bring(session, stretch))
        self._tasks.add(task)
        task.add_done_callback(ended)


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
    events = session.backend.arun(stretch.program)
    try:
        async for event in events:
            session.feed(stretch, event)
    finally:
        aclose = getattr(events, "aclose", None)
        if aclose is not None:
            await aclose()
