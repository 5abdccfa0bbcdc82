"""One call of a `@function`: its body, its session and its state, on a thread or on an event loop; and the drivers that
deliver events to the session: pulled by the threads that wait for them, or by tasks of the loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextvars import Token
from functools import partial
from typing import Any, NamedTuple

from ...runtime.protocol.errors import BoughError
from ...runtime.protocol.program import ProgramEvent
from ..backend import Backend
from ..diagnostics.errors import ProgramError
from ..diagnostics.source_lines import Place, add_line, caller, users_lines
from ..observe import otel
from ..record.variables import Submission
from ..session.body import Scope, Watch, current, in_body, spawn, wait_for
from ..session.branch import Branch
from ..session.loops import background, on_a_loop
from ..session.session import Session, Settings
from ..state.conversation import Conversation, begin_with, policy_advice
from ..state.state import State
from ..state.values import RunReading, check_unread

_GRACE_S = 0.5
"""After a program's limit: in which the engine can say itself what has taken too long."""


class Past(NamedTuple):
    """A conversation that a program continues, and the line that says so."""

    conversation: Conversation
    place: Place


class Invocation(NamedTuple):
    """Call of a program: body, arguments, sampling defaults, where and how to run. `refusal`: why it cannot be run.
    `past`: what its state begins with."""

    name: str
    body: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    defaults: Mapping[str, Any]
    backend: Backend
    settings: Settings
    refusal: Exception | None = None
    past: Past | None = None

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.body)


class Run:
    """A call in progress. `state` can be read at any time, also after a failure.

    main   the task that runs the body, if it has one of its own
    """

    def __init__(self, call: Invocation, driver: PullDriver | TaskDriver) -> None:
        self._call = call
        self._driver = driver
        self.session = Session(call.backend, driver, call.settings, RunReading())
        if otel.switch.begin is not None:
            self.session.spans = otel.switch.begin(call.name, self.session.id, call.backend)
        self.state: State[Any] = State(Branch(self.session, call.defaults))
        self.state._return(None)
        self.session.body.state = self.state
        self.main: asyncio.Task[State[Any]] | None = None

    def execute(self) -> State[Any]:
        """Runs the body, and waits for all that it asked for.

        Raises:
            ProgramError: the program is wrong or failed. What the body raises passes through; it stops the program.
        """
        with self.session.spans.current() if self.session.spans else contextlib.nullcontext():
            try:
                self._check()
                self._run_body()
                self.session.finish(self._judge)
            except BaseException as error:
                self.session.abort(error)
                raise
        return self.state

    async def aexecute(self, watch: Watch | None = None) -> State[Any]:
        """Does the same for a task. A body that is no coroutine function runs in a greenlet, so that it may wait."""
        assert isinstance(self._driver, TaskDriver)
        self._driver.attach()
        with users_lines, self.session.spans.current() if self.session.spans else contextlib.nullcontext():
            try:
                self._check()
                if self._call.settings.timeout_s is None:
                    await self._await_all(watch)
                else:
                    await self._await_all_in_time(watch, self._call.settings.timeout_s)
            except BaseException as error:
                await self.session.aabort(error)
                await self._driver.stopped()
                raise
        return self.state

    def start(self) -> None:
        """Does the same beside the caller, who goes on at once; reading raises what went wrong.

        A plain body gets a thread of its own, since it may block in any way that Python knows; a coroutine function
        runs on the loop thread that the process has for them.
        """
        self.session.watched = True
        if isinstance(self._driver, TaskDriver):
            background.get().submit(self.aexecute()).add_done_callback(_leave_to_readers)
            return
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(self._execute_quietly,), name=self._call.name, daemon=True)
        thread.start()

    def start_task(self) -> asyncio.Task[State[Any]]:
        """Does the same as a task of the caller's event loop."""
        self.session.watched = True
        task = asyncio.get_running_loop().create_task(self.aexecute())
        task.add_done_callback(_leave_to_readers)
        self.main = task
        return task

    def _execute_quietly(self) -> None:
        try:
            self.execute()
        except BaseException:  # noqa: BLE001  the end of a thread; `execute` has left it to those who read
            return

    async def _await_all(self, watch: Watch | None) -> None:
        if self._call.is_async:
            token = self._enter()
            try:
                result = await self._body()
                self._returned(result)
                await self.session.asettle()
            finally:
                current.reset(token)
        else:
            await spawn(self._run_body, watch)
        await self.session.afinish(self._judge)

    async def _await_all_in_time(self, watch: Watch | None, limit_s: float) -> None:
        """Ends the body if it goes on after the program's time, whatever it waits for."""
        try:
            async with asyncio.timeout(limit_s + _GRACE_S) as timer:
                await self._await_all(watch)
        except TimeoutError as error:
            if not timer.expired():
                raise
            raise ProgramError(
                f"the program was not done within {limit_s:g} s", code="generation_timeout", param="timeout_s"
            ) from error

    def _run_body(self) -> None:
        token = self._enter()
        try:
            self._returned(self._body())
            self.session.settle()
        finally:
            current.reset(token)

    def _body(self) -> Any:
        try:
            return self._call.body(self.state, *self._call.args, **self._call.kwargs)
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:  # the call itself is wrong
                _explain_arguments(error, self._call)
            raise

    def _returned(self, result: Any) -> None:
        self.session.body.awaited.check(self._call.body, result)
        self.state._return(result)

    def _judge(self) -> None:
        check_unread(self.session)

    def _enter(self) -> Token[Scope | None]:
        self.session.own()
        if self._call.past is not None:
            begin_with(self._call.past.conversation, self.state._branch, self._call.past.place)
        return current.set(Scope(self.session, self.state, isinstance(self._driver, TaskDriver), current.get()))

    def _check(self) -> None:
        if self._call.refusal is not None:
            raise self._call.refusal
        if self._call.is_async and isinstance(self._driver, PullDriver):
            raise ProgramError(
                f"{self._call.name} is a coroutine function: use `await {self._call.name}.arun(...)`",
                code="invalid_program",
            )


def _explain_arguments(error: TypeError, call: Invocation) -> None:
    """Says of arguments that a body does not take what it does take, and which line gives them."""
    first, *others = inspect.signature(call.body).parameters
    shown = ", ".join(f"{name}=..." for name in others)
    state = "" if first == "s" else f"; its first parameter, {first!r}, is the state"
    past = f"; to continue a state, {call.name}.after(state).run(...)" if _has_state(call) else ""
    policy = next(filter(None, map(policy_advice, call.args)), "")
    error.args = (policy or f"{error}: call it as {call.name}.run({shown}){state}{past}",)
    add_line(error)


def _has_state(call: Invocation) -> bool:
    return any(isinstance(given, State) for given in (*call.args, *call.kwargs.values()))


def _leave_to_readers(done: Future[State[Any]] | asyncio.Task[State[Any]]) -> None:
    """Takes the exception that no caller awaits: `aexecute` has left what went wrong to those who read."""
    if not done.cancelled():
        done.exception()


# What brings events


class PullDriver:
    """Has threads that wait pull events until what they wait for is there. Needs no thread of its own.

    If several threads wait for one submission, one pulls for all.
    """

    def start(self, session: Session, submission: Submission) -> None:
        submission.events = session.backend.run(*submission.arguments)

    def wait(self, session: Session, done: Callable[[], bool], submission: Callable[[], Submission | None]) -> None:
        if in_body():  # of another program, on an event loop that must not stand still
            wait_for(asyncio.to_thread(self._wait, session, done, submission))
        else:
            self._wait(session, done, submission)

    def _wait(self, session: Session, done: Callable[[], bool], submission: Callable[[], Submission | None]) -> None:
        with session.changed:
            while not done():
                wanted = submission()
                # a submission continues what those before it have begun
                target = (
                    next((s for s in session.outbox.submissions if not s.begun), wanted) if wanted is not None else None
                )
                if target is None or target.events is None or target.pulling:
                    session.changed.wait()
                else:
                    _pull(session, target)

    def stop(self, session: Session) -> None:
        with session.changed:  # as `_pull` closes, too: a generator must not be closed by two threads at once
            pulled = [submission for submission in session.outbox.submissions if submission.pulling]
            for submission in session.outbox.submissions:
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
        if in_body():
            wait_for(session.await_until(done))
            return
        with session.changed:
            if not done() and threading.get_ident() == self._thread and on_a_loop():
                raise ProgramError(
                    "this would block the event loop: in a coroutine, read with `await s.aget(name)`, or wait for all "
                    "that was asked for with `await s.asettle()`",
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
    before = session.outbox.submissions[: session.outbox.submissions.index(submission)]
    await session.await_until(lambda: all(other.begun for other in before))
    events = session.backend.arun(*submission.arguments)
    try:
        async for event in events:
            session.feed(submission, event)
    finally:
        aclose = getattr(events, "aclose", None)
        if aclose is not None:
            await aclose()
