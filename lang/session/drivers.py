"""Drivers, which bring events to a session: pulled by the threads that wait for them, or by tasks of an event loop."""

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
from ..record.variables import Submission
from . import waiting
from .session import Session
from .waiting import on_a_loop


class PullDriver:
    """Has threads that wait pull events until what they wait for is there. Needs no thread of its own.

    If several threads wait for one submission, one pulls for all.
    """

    def start(self, session: Session, submission: Submission) -> None:
        submission.events = session.backend.run(*submission.arguments)

    def wait(self, session: Session, done: Callable[[], bool], submission: Callable[[], Submission | None]) -> None:
        if waiting.in_body():  # of another program, on an event loop that must not stand still
            waiting.wait_for(asyncio.to_thread(self._wait, session, done, submission))
        else:
            self._wait(session, done, submission)

    def _wait(self, session: Session, done: Callable[[], bool], submission: Callable[[], Submission | None]) -> None:
        with session.changed:
            while not done():
                wanted = submission()
                # a submission continues what those before it have begun
                target = next((s for s in session.submissions if not s.begun), wanted) if wanted is not None else None
                if target is None or target.events is None or target.pulling:
                    session.changed.wait()
                else:
                    _pull(session, target)

    def stop(self, session: Session) -> None:
        pulled = [submission for submission in session.submissions if submission.pulling]
        for submission in session.submissions:
            if submission not in pulled:
                _close(session, submission)
        if pulled:  # who waits there closes it at the next event, which is now, and not when some tool is done
            with contextlib.suppress(BoughError):
                session.backend.drop(session.id)


class TaskDriver:
    """A task for each submission. The program's body runs on the event loop's thread: a coroutine, or in a greenlet."""

    __slots__ = ("_loop", "_tasks", "_thread")

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._tasks: list[asyncio.Task[None]] = []

    def attach(self) -> None:
        """The running loop is the one to use."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def start(self, session: Session, submission: Submission) -> None:
        self._on_loop(self._spawn, session, submission)

    def wait(self, session: Session, done: Callable[[], bool], submission: Callable[[], Submission | None]) -> None:
        if waiting.in_body():
            waiting.wait_for(session.await_until(done))
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

    def _spawn(self, session: Session, submission: Submission) -> None:
        if session.error is not None or self._loop is None:
            session.end(submission, session.error)
            return

        task = self._loop.create_task(_bring(session, submission))
        self._tasks.append(task)
        task.add_done_callback(partial(self._ended, session, submission))

    def _ended(self, session: Session, submission: Submission, task: asyncio.Task[None]) -> None:
        self._tasks.remove(task)
        session.end(submission, (None if task.cancelled() else task.exception()) or session.error)


def _pull(session: Session, submission: Submission) -> None:
    """Takes the next event of a submission. `session.changed` is held, but not while waiting."""
    assert submission.events is not None
    event: ProgramEvent | None = None
    error: BaseException | None = None
    submission.pulling = True
    session.changed.release()
    try:
        event = next(submission.events, None)
    except BoughError as refusal:
        error = refusal
    except BaseException:
        error = ProgramError("waiting for the program was interrupted", code="aborted")
        raise
    finally:
        session.changed.acquire()
        submission.pulling = False
        if event is None:
            session.end(submission, error)
        else:
            session.feed(submission, event)
        if session.error is not None or submission.ended:
            _close(session, submission)


def _close(session: Session, submission: Submission) -> None:
    """Leaves a submission, which aborts it if it is still running."""
    close = getattr(submission.events, "close", None)
    if close is not None:
        close()
    session.end(submission, session.error)


async def _bring(session: Session, submission: Submission) -> None:
    """Takes the events of a submission to the session, once those before it have begun."""
    before = session.submissions[: session.submissions.index(submission)]
    await session.await_until(lambda: all(other.begun for other in before))
    events = session.backend.arun(*submission.arguments)
    try:
        async for event in events:
            session.feed(submission, event)
    finally:
        aclose = getattr(events, "aclose", None)
        if aclose is not None:
            await aclose()
