"""Stream of all events of one run, for `for` and `async for`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar

from ...runtime.protocol.program import Delta, ProgramEvent, Value
from ..diagnostics.errors import ProgramError
from ..diagnostics.source_lines import caller, no_attribute, users_lines
from ..session.body import in_body, wait_for
from ..state.state import State
from .run import Invocation, PullDriver, Run, TaskDriver

Result = TypeVar("Result")

_MEANT = {
    **dict.fromkeys(
        ("text_iter", "text_async_iter", "iter_text", "deltas", "tokens"),
        "text() streams the text, and text(name) that of a variable",
    ),
    **dict.fromkeys(("partial", "partials"), "f.run(..., stream=True).stream(name, partial=True) gives typed parts"),
    **dict.fromkeys(("result", "results", "value", "output", "ret_value", "values"), "its program's state is .state"),
    "get_meta_info": "that is .state.get_meta_info(name)",
}
"""Likely meanings of attributes that do not exist."""


class EventStream(Iterator[ProgramEvent], AsyncIterator[ProgramEvent], Generic[Result]):
    """Runs a program, and gives its events: with `for` beside the caller, with `async for` as a task of his loop.

    Nothing runs before the first event is asked for. Leaving early stops the program: by `close`, `aclose`, the end of
    a `with` or `async with`, or by dropping the stream.

    >>> with capital.stream("France") as events:
    ...     for event in events:
    ...         if isinstance(event, Delta):
    ...             print(event.text, end="")

    `text()` has the texts alone.
    """

    def __init__(self, call: Invocation) -> None:
        self._call = call
        self._run: Run | None = None
        self._events: Generator[ProgramEvent, None, None] | None = None
        self._aevents: AsyncGenerator[ProgramEvent, None] | None = None

    def text(self, name: str | None = None) -> TextStream:
        """The texts alone, as they come: what generations add to the program's own line, or to the variable `name`.

        What branches of a fork generate is told by name only. A value that is asked for with retries comes whole, once
        it is right.

        >>> for text in capital.stream("France").text():
        ...     print(text, end="")
        """
        return TextStream(self, name)

    @property
    def state(self) -> State[Result]:
        """The program's state, once the stream has begun.

        Raises:
            ProgramError: it has not.
        """
        if self._run is None:
            raise ProgramError("the stream has not begun: there is no state yet", code="invalid_program")
        return self._run.state

    @property
    def log(self) -> list[ProgramEvent]:
        """All events so far."""
        return [] if self._run is None else list(self._run.session.tally.log)

    if not TYPE_CHECKING:  # type checkers say it themselves

        @users_lines
        def __getitem__(self, name: object) -> NoReturn:
            raise ProgramError(
                f"this is a stream of events: a variable, once it has come, is .state[{name!r}]",
                code="invalid_program",
                place=caller(),
            )

        @users_lines
        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute("a stream of events", name, _MEANT, dir(type(self)))

    def is_attempt(self, event: Delta) -> bool:
        """Tells whether the text is of a value that is not known to be right yet, and comes again when it is."""
        return self._run is not None and event.branch in self._run.session.body.trials

    @users_lines
    def __next__(self) -> ProgramEvent:
        if in_body():
            event = wait_for(anext(self, None))
            if event is None:
                raise StopIteration
            return event
        if self._events is None:
            run = self._begin(TaskDriver() if self._call.is_async else PullDriver(), Run.start)
            self._events = _events(run)
        return next(self._events)

    async def __anext__(self) -> ProgramEvent:
        if self._aevents is None:
            self._aevents = _aevents(self._begin(TaskDriver(), Run.start_task))
        with users_lines:
            return await anext(self._aevents)

    def close(self) -> None:
        """Stops the program, if it is still running."""
        if self._events is not None:
            self._events.close()
        if self._run is not None:
            self._run.session.abort(_left())

    async def aclose(self) -> None:
        """Stops the program, and waits until it has ended."""
        if self._aevents is not None:
            await self._aevents.aclose()
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    def _begin(self, driver: PullDriver | TaskDriver, start: Callable[[Run], object]) -> Run:
        if self._run is None:
            self._run = Run(self._call, driver)
            start(self._run)
        return self._run


class TextStream(Iterator[str], AsyncIterator[str]):
    """The texts in a stream of events, for `for` and `async for`; `name` is the variable's, None: of the whole line."""

    def __init__(self, events: EventStream[Any], name: str | None) -> None:
        self._events = events
        self._name = name

    @users_lines
    def __next__(self) -> str:
        while (event := next(self._events, None)) is not None:
            if text := self._text_in(event):
                return text
        self._check()
        raise StopIteration

    async def __anext__(self) -> str:
        with users_lines:
            while (event := await anext(self._events, None)) is not None:
                if text := self._text_in(event):
                    return text
            self._check()
            raise StopAsyncIteration

    def _check(self) -> None:
        """Raises, at the end, if there could not be any text: there is no such variable, or it is all of branches."""
        made = [event for event in self._events.log if isinstance(event, Delta | Value)]
        if self._name is not None:
            if all(_variable_of(event) != self._name for event in made):
                self._events.state._branch.look_up(self._name)
            return
        names = sorted({_variable_of(event) for event in made})
        if names and all(event.branch for event in made):
            raise ProgramError(
                f"all that was generated is of forked branches, which text() does not stream: name the variable, "
                f"text({names[0]!r})",
                code="invalid_program",
                place=caller(),
            )

    def _text_in(self, event: ProgramEvent) -> str:
        if not isinstance(event, Delta):
            return ""
        if self._name is None:
            return event.text if event.branch == 0 else ""
        return event.text if _variable_of(event) == self._name and not self._events.is_attempt(event) else ""


def _variable_of(event: Delta | Value) -> str:
    """Returns the variable's name: the second "x" of a branch is sent as "x#2"."""
    name, mark, number = event.name.rpartition("#")
    return name if mark and number.isdigit() else event.name


def _events(run: Run) -> Generator[ProgramEvent, None, None]:
    session, num_seen = run.session, 0
    try:
        while True:
            with session.changed:
                while not session.news(num_seen):
                    session.changed.wait()
                new = session.tally.log[num_seen:]
            num_seen += len(new)
            yield from new
            if not new:
                session.raise_error()
                return
    finally:
        session.abort(_left())


async def _aevents(run: Run) -> AsyncGenerator[ProgramEvent, None]:
    session, num_seen = run.session, 0
    try:
        while True:
            await session.await_until(partial(session.news, num_seen))
            new = session.tally.log[num_seen:]
            num_seen += len(new)
            for event in new:
                yield event
            if not new:
                break
        if run.main is not None:
            await run.main  # raises what it has raised
        session.raise_error()
    finally:
        await session.aabort(_left())
        if run.main is not None:
            run.main.cancel()
            await asyncio.gather(run.main, return_exceptions=True)


def _left() -> ProgramError:
    return ProgramError("the stream of events was left", code="aborted")
