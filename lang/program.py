"""A decorated function: runs its body once per call, alone, in a batch, streaming, or on an event loop."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from typing import Any, Literal, overload

from ..runtime.errors import RequestError
from ..runtime.program import ProgramEvent
from .backend import Backend, resolve_backend
from .batch import arun_batch, run_batch, split_item
from .branch import Branch
from .drivers import PullDriver, TaskDriver
from .errors import ProgramError
from .options import OPTION_NAMES, clean_options
from .run import Call, Run, current
from .session import Settings
from .state import Group, State

__all__ = ["Function", "Group", "State"]

_RESERVED = ("backend", "stream", "trace", "namespace", "timeout_s")


class Function:
    """A program: `run` calls its body with a fresh state and the arguments given.

    Keyword arguments that are sampling options (`temperature`, `max_tokens`, ...; see `SamplingOptions`) become the
    defaults of all generations in it; a parameter of the body with such a name comes first. All forms of `run` take

    backend     where to run; the default backend if it is left out
    trace       keep what `State.timeline` needs
    namespace   cached prefixes are shared only within one
    timeout_s   of each request that the program makes

    >>> @bough.function
    ... def capital(s, country):
    ...     s += bough.user(f"The capital of {country}?") + bough.assistant(bough.gen("city", max_tokens=8))
    >>> capital.run("France", temperature=0)["city"]
    'Paris'
    """

    __name__: str

    def __init__(self, body: Callable[..., Any], bound: Mapping[str, Any] | None = None) -> None:
        parameters = list(inspect.signature(body).parameters.values())
        if not parameters or parameters[0].kind in (parameters[0].KEYWORD_ONLY, parameters[0].VAR_KEYWORD):
            raise ProgramError(f"{body.__qualname__} needs a first parameter, for the state", code="invalid_program")
        for parameter in parameters:
            if parameter.name in _RESERVED:
                raise ProgramError(
                    f"{body.__qualname__} cannot have a parameter {parameter.name!r}: `run` has one of that name",
                    code="invalid_program",
                    param=parameter.name,
                )
        self.body = body
        self.bound = dict(bound or {})
        self._own_names = {parameter.name for parameter in parameters[1:]}
        functools.update_wrapper(self, body)

    def __repr__(self) -> str:
        return f"<function {self.body.__qualname__}>"

    def bind(self, **kwargs: Any) -> Function:
        """The same program with some arguments or sampling defaults filled in; those of a call come first."""
        return Function(self.body, {**self.bound, **kwargs})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program, as `run` does.

        Inside the body of another program it can be used in two more ways: with that program's state as first argument
        it records there, and returns what the body returns; `s += other(topic)` does the same. Otherwise the other
        program runs on its own, with the caller's backend and sampling defaults, when something is read from it.
        """
        if args and isinstance(args[0], State):
            names = {**self.bound, **kwargs}
            return self.body(*args, **names)
        caller = current.get()
        if caller is None:
            return self.run(*args, **kwargs)
        return NestedState(self, caller, args, kwargs)

    def run(
        self,
        *args: Any,
        backend: Backend | None = None,
        stream: bool = False,
        trace: bool | None = None,
        namespace: str | None = None,
        timeout_s: float | None = None,
        **kwargs: Any,
    ) -> State:
        """Runs the program and waits for its end. With `stream=True` it runs on a thread, and this returns at once.

        Raises:
            ProgramError: the program is wrong, or failed; it names the line.
        """
        around = {"backend": backend, "trace": trace, "namespace": namespace, "timeout_s": timeout_s}
        given = {name: value for name, value in around.items() if value is not None}
        run = self._prepare(args, {**kwargs, **given}, PullDriver())
        return run.start() if stream else run.execute()

    async def arun(self, *args: Any, **kwargs: Any) -> State:
        """`run` for tasks; cancelling the task stops the program. The body may be a coroutine function.

        >>> state = await capital.arun("France")
        """
        return await self._prepare(args, kwargs, TaskDriver()).aexecute()

    def stream(self, *args: Any, **kwargs: Any) -> Generator[ProgramEvent, None, None]:
        """Runs the program, and yields Delta, Value, ... as they come. Leaving early stops it.

        >>> for event in capital.stream("France"):
        ...     if isinstance(event, Delta):
        ...         print(event.text, end="")
        """
        yield from self._prepare(args, kwargs, PullDriver(), log=True).events()

    async def astream(self, *args: Any, **kwargs: Any) -> AsyncGenerator[ProgramEvent, None]:
        """`stream` for tasks. Leave it with `aclose`, or by cancelling the task."""
        run = self._prepare(args, kwargs, TaskDriver(), log=True)
        session, num_seen = run.session, 0
        task = asyncio.get_running_loop().create_task(run.aexecute())
        try:
            while True:
                await session.await_until(functools.partial(session.news, num_seen))
                new = session.log[num_seen:]
                if not new:
                    break
                for event in new:
                    num_seen += 1
                    yield event
            await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @overload
    def run_batch(
        self,
        batch: Sequence[Mapping[str, Any] | Sequence[Any]],
        *,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: Literal[False] = False,
        **kwargs: Any,
    ) -> list[State]: ...
    @overload
    def run_batch(
        self,
        batch: Sequence[Mapping[str, Any] | Sequence[Any]],
        *,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: Literal[True],
        **kwargs: Any,
    ) -> Generator[State, None, None]: ...
    def run_batch(
        self,
        batch: Sequence[Mapping[str, Any] | Sequence[Any]],
        *,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        **kwargs: Any,
    ) -> list[State] | Generator[State, None, None]:
        """Runs the program for each item, a dict or tuple of arguments; `num_threads` at once. States in order.

        A run that fails spoils no other: its state's `error()` says why, and reading from it raises that.
        `generator_style` gives the states as they are done, still in order. `kwargs` are those of `run`.

        >>> states = capital.run_batch([{"country": "France"}, {"country": "Japan"}], temperature=0)
        """
        items, backend = self._split_batch(batch, kwargs)

        def make(index: int, driver: PullDriver) -> Run:
            args, own = items[index]
            return self._prepare(args, {**kwargs, "backend": backend, **own}, driver)

        states = run_batch(make, len(items), num_threads=num_threads, progress_bar=progress_bar)
        return states if generator_style else list(states)

    async def arun_batch(
        self,
        batch: Sequence[Mapping[str, Any] | Sequence[Any]],
        *,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        **kwargs: Any,
    ) -> list[State]:
        """`run_batch` for tasks."""
        items, backend = self._split_batch(batch, kwargs)

        def make(index: int, driver: TaskDriver) -> Run:
            args, own = items[index]
            return self._prepare(args, {**kwargs, "backend": backend, **own}, driver)

        return await arun_batch(make, len(items), num_threads=num_threads, progress_bar=progress_bar)

    def _split_batch(
        self, batch: Sequence[Mapping[str, Any] | Sequence[Any]], kwargs: dict[str, Any]
    ) -> tuple[list[tuple[tuple[Any, ...], Mapping[str, Any]]], Backend]:
        """Checks what can be checked before anything runs."""
        items = [split_item(item) for item in batch]
        backend = resolve_backend(kwargs.pop("backend", None))
        clean_options({name: value for name, value in kwargs.items() if self._is_option(name)})
        return items, backend

    def _is_option(self, name: str) -> bool:
        return name in OPTION_NAMES and name not in self._own_names

    def _prepare(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], driver: PullDriver | TaskDriver, *, log: bool = False
    ) -> Run:
        fields = {**self.bound, **kwargs}
        backend = fields.pop("backend", None)
        settings = Settings(
            title=self.body.__name__,
            log=log,
            trace=fields.pop("trace", False),
            namespace=fields.pop("namespace", ""),
            timeout_s=fields.pop("timeout_s", None),
        )
        if settings.timeout_s is not None and settings.timeout_s <= 0:
            raise RequestError(f"timeout_s must be more than 0, got {settings.timeout_s:g}", param="timeout_s")
        options = {name: fields.pop(name) for name in list(fields) if self._is_option(name)}
        call = Call(self.body.__name__, self.body, args, fields, clean_options(options))
        return Run(call, backend, settings, driver)


class NestedState(State):
    """A call of a program inside another: recorded there if it is appended, run on its own if it is read from."""

    def __init__(self, function: Function, caller: State, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._function = function
        self._caller = caller
        self._args = args
        self._kwargs = kwargs
        self._started: State | None = None

    @property
    def _branch(self) -> Branch:
        if self._started is None:
            inherited = self._caller._branch
            settings = inherited.session.settings
            around = {"backend": inherited.session.backend, "namespace": settings.namespace, "trace": settings.trace}
            options = {name: value for name, value in inherited.defaults.items() if self._function._is_option(name)}
            self._started = self._function.run(*self._args, **{**around, **options, **self._kwargs})
            self.ret_value = self._started.ret_value
        return self._started._branch

    def _append_to(self, state: State) -> None:
        if self._started is not None:
            super()._append_to(state)
        self._function(state, *self._args, **self._kwargs)
