"""One call of a `@function`: its body, its session and its state, on a thread or on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextvars import Token
from typing import Any, NamedTuple

from ..backend import Backend
from ..diagnostics.errors import ProgramError
from ..observe import otel
from ..session import waiting
from ..session.branch import Branch
from ..session.drivers import PullDriver, TaskDriver
from ..session.scope import Scope, current
from ..session.session import Session, Settings
from ..session.waiting import background
from ..state.state import State
from ..state.values import RunReading

_GRACE_S = 0.5
"""After a program's limit: in which the engine can say itself what has taken too long."""


class Call(NamedTuple):
    """Call of a program: body, arguments, sampling defaults, where and how to run. `refusal`: why it cannot be run."""

    name: str
    body: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    defaults: Mapping[str, Any]
    backend: Backend
    settings: Settings
    refusal: Exception | None = None

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.body)


class Run:
    """A call in progress. `state` can be read at any time, also after a failure.

    main   the task that runs the body, if it has one of its own
    """

    def __init__(self, call: Call, driver: PullDriver | TaskDriver) -> None:
        self._call = call
        self._driver = driver
        self.session = Session(call.backend, driver, call.settings, RunReading())
        if otel.switch.begin is not None:
            self.session.spans = otel.switch.begin(call.name, self.session.id, call.backend)
        self.state: State[Any] = State(Branch(self.session, call.defaults))
        self.state.ret_value = None
        self.session.state = self.state
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
                self.session.finish()
            except BaseException as error:
                self.session.abort(error)
                raise
        return self.state

    async def aexecute(self, watch: waiting.Watch | None = None) -> State[Any]:
        """Does the same for a task. A body that is no coroutine function runs in a greenlet, so that it may wait."""
        assert isinstance(self._driver, TaskDriver)
        self._driver.attach()
        with self.session.spans.current() if self.session.spans else contextlib.nullcontext():
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

    async def _await_all(self, watch: waiting.Watch | None) -> None:
        if self._call.is_async:
            token = self._enter()
            try:
                result = await self._call.body(self.state, *self._call.args, **self._call.kwargs)
                self._returned(result)
            finally:
                current.reset(token)
        else:
            await waiting.spawn(self._run_body, watch)
        await self.session.afinish()

    async def _await_all_in_time(self, watch: waiting.Watch | None, limit_s: float) -> None:
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
            self._returned(self._call.body(self.state, *self._call.args, **self._call.kwargs))
        finally:
            current.reset(token)

    def _returned(self, result: Any) -> None:
        self.session.awaited.check(self._call.body, result)
        self.state.ret_value = result

    def _enter(self) -> Token[Scope | None]:
        self.session.own()
        return current.set(Scope(self.session, self.state, isinstance(self._driver, TaskDriver), current.get()))

    def _check(self) -> None:
        if self._call.refusal is not None:
            raise self._call.refusal
        if self._call.is_async and isinstance(self._driver, PullDriver):
            raise ProgramError(
                f"{self._call.name} is a coroutine function: use `await {self._call.name}.arun(...)`",
                code="invalid_program",
            )


def _leave_to_readers(done: Future[State[Any]] | asyncio.Task[State[Any]]) -> None:
    """Takes the exception that no caller awaits: `aexecute` has left what went wrong to those who read."""
    if not done.cancelled():
        done.exception()
