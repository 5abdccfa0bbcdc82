"""One call of a `@function`: its body, its session and its state, on a thread or on an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from ..runtime.program import ProgramEvent
from .backend import Backend, resolve_backend
from .branch import Branch
from .drivers import PullDriver, TaskDriver
from .errors import ProgramError
from .session import Session, Settings
from .state import State

Result = TypeVar("Result")


class Call(NamedTuple):
    """What to run, with which arguments and sampling defaults."""

    name: str
    body: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    defaults: Mapping[str, Any]

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.body)


current: ContextVar[State | None] = ContextVar("bough_current_state", default=None)
"""The state of the program whose body is being run."""


class Run:
    """A call in progress. `state` can be read at any time, also after a failure."""

    def __init__(
        self, call: Call, backend: Backend | None, settings: Settings, driver: PullDriver | TaskDriver
    ) -> None:
        self._call = call
        self._driver = driver
        self.session = Session(resolve_backend(backend), driver, settings)
        self.state = self.session.state = State(Branch(self.session, call.defaults))

    def execute(self) -> State:
        """Runs the body, and waits for all that it asked for.

        Raises:
            ProgramError: the program is wrong or failed. What the body raises passes through; it stops the program.
        """
        try:
            self.session.own()
            self._refuse_async()
            self._run_body()
            self.session.finish()
        except BaseException as error:
            self.session.abort(error)
            raise
        return self.state

    def start(self) -> State:
        """Does the same on a thread of its own, and returns at once; reading raises what went wrong."""
        self._refuse_async()
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(self._execute_quietly,), name=self._call.name, daemon=True)
        thread.start()
        return self.state

    def _execute_quietly(self) -> None:
        try:
            self.execute()
        except BaseException:  # noqa: BLE001  the end of a thread; `execute` has left it to those who read
            return

    async def aexecute(self) -> State:
        """Does the same for a task. A body that is no coroutine function runs on a thread, so that it may wait."""
        assert isinstance(self._driver, TaskDriver)
        try:
            if self._call.is_async:
                token = current.set(self.state)
                try:
                    self.session.own()
                    self.state.ret_value = await self._call.body(self.state, *self._call.args, **self._call.kwargs)
                finally:
                    current.reset(token)
            else:
                await _in_thread(self._own_and_run_body)
            await self.session.afinish()
        except BaseException as error:
            await self.session.aabort(error)
            await self._driver.stopped()
            raise
        return self.state

    def events(self) -> Iterator[ProgramEvent]:
        """Starts, and yields all events as they come. Leaving early stops the program."""
        session = self.session
        self.start()
        num_seen = 0
        try:
            while True:
                with session.changed:
                    while not session.news(num_seen):
                        session.changed.wait()
                    new = session.log[num_seen:]
                num_seen += len(new)
                yield from new
                if not new:
                    session.raise_error()
                    return
        finally:
            session.abort(ProgramError("the stream of events was left", code="aborted"))

    def _own_and_run_body(self) -> None:
        self.session.own()
        self._run_body()

    def _run_body(self) -> None:
        token = current.set(self.state)
        try:
            self.state.ret_value = self._call.body(self.state, *self._call.args, **self._call.kwargs)
        finally:
            current.reset(token)

    def _refuse_async(self) -> None:
        if self._call.is_async:
            raise ProgramError(
                f"{self._call.name} is a coroutine function: use `await {self._call.name}.arun(...)`",
                code="invalid_program",
            )


async def _in_thread(work: Callable[[], Result]) -> Result:
    """The result of `work`, done on a thread of its own: it may wait for the event loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Result | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def target() -> None:
        result: Result | None = None
        failure: BaseException | None = None
        try:
            result = context.run(work)
        except BaseException as error:  # noqa: BLE001  the end of a thread; raised where it is awaited
            failure = error
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except RuntimeError:  # the loop is closed: nobody waits
            return

    threading.Thread(target=target, name="bough-body", daemon=True).start()
    return await future
