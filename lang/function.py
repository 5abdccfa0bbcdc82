"""Decorated functions: run their body once per call, alone, in a batch, streaming, or on an event loop."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Coroutine, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Self, TypeVar, cast, overload

from ..runtime.protocol.errors import BoughError
from .backend import Backend, resolve_backend
from .diagnostics.errors import ProgramError
from .diagnostics.source_lines import caller, located, no_attribute, users_lines
from .record.options import (
    OF_CALLS,
    OF_ITEMS,
    OPTION_NAMES,
    apart,
    checked_flag,
    checked_timeout,
    clean_options,
    nearest,
    wrong_kind,
)
from .run.batch import Maker, States, alist, check_batch, count_at_once, on_loop, on_threads, split_item
from .run.events import EventStream
from .run.run import Invocation, Past, PullDriver, Run, TaskDriver
from .session.body import Promised, Scope, current, in_body, wait_for
from .session.branch import Branch
from .session.loops import on_a_loop, run_blocking
from .session.session import Settings
from .state.conversation import Conversation, refuse_policy
from .state.group import Group
from .state.notebook import text_view
from .state.state import Result, State

if TYPE_CHECKING:
    from .compile.compiled import CompiledProgram
    from .compile.cost import Encoder

Method = TypeVar("Method", bound=Callable[..., Any])

__all__ = ["AsyncFunction", "Function", "Group", "State"]

_ELSEWHERE = {
    "stream": ": only run(stream=True) has it; `for event in f.stream(...)` and `async for` give events",
    **dict.fromkeys(("retries", "max_retries"), ": gen(name, Type, retries=...) asks again"),
    **dict.fromkeys(
        ("messages", "history"),
        ": f.after(state).run(...) continues a state, f.after(bough.Conversation(messages)) a list of messages",
    ),
    **dict.fromkeys(
        ("return_exceptions", "on_error", "raise_on_error"),
        ": a failed run of a batch keeps its error, state.error(), and the others go on",
    ),
    **dict.fromkeys(
        ("progress", "show_progress", "show_progress_bar", "tqdm", "verbose"),
        ": run_batch(batch, progress_bar=True) shows a bar",
    ),
    **dict.fromkeys(
        (
            "workers",
            "n_workers",
            "threads",
            "n_threads",
            "max_threads",
            "max_workers",
            "n_jobs",
            "concurrency",
            "max_concurrency",
            "num_workers",
        ),
        ": run_batch(batch, num_threads=...) says how many run at once",
    ),
    "model": ": a program is run on a backend, backend=bough.LocalBackend(model)",
}
_MEANT = {
    **dict.fromkeys(("run_async", "async_run", "acall", "ainvoke", "agenerate"), "write await f.arun(...)"),
    **dict.fromkeys(("batch", "map", "run_many", "starmap", "batch_run"), "write f.run_batch(items)"),
    **dict.fromkeys(("abatch", "run_batch_async", "amap"), "write await f.arun_batch(items)"),
    **dict.fromkeys(("invoke", "execute", "call", "generate"), "write f.run(...)"),
    **dict.fromkeys(("continue_", "resume", "chat"), "f.after(state).run(...) continues a state"),
}
"""Likely meanings of attributes that do not exist."""
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_RESERVED = ("backend", "stream", "trace", "namespace", "timeout_s")


def _one_past(after: Method) -> Method:
    """Has the method say what to write if it is given more than a past, or a policy."""

    @functools.wraps(after)
    def checked_after(self: Any, *given: Any, **named: Any) -> Any:
        for one in (*given, *named.values()):
            refuse_policy(one)
        if len(given) != 1 or named:
            raise TypeError("after() takes a state or a Conversation, and nothing else; arguments are for run(...)")
        return after(self, *given)

    return cast(Method, checked_after)


class Function(Generic[Result]):
    """A program: `run` calls its body with a new state and the given arguments.

    Keyword arguments that are sampling options (`temperature`, `max_tokens`, ...; see `SamplingOptions`) become the
    defaults of all generations in it, unless the body has a parameter of that name. All forms of `run` take

    backend     where to run; by default the default backend
    trace       keep what `State.timeline` needs
    namespace   cached prefixes are shared only within a namespace
    timeout_s   limit for the whole program, from start to end

    >>> @bough.function
    ... def capital(s, country):
    ...     s += bough.user(f"The capital of {country}?") + bough.assistant(bough.gen("city", max_tokens=8))
    >>> capital.run("France", temperature=0)["city"]
    'Paris'
    """

    __name__: str

    def __init__(
        self,
        body: Callable[..., Any],
        bound: Mapping[str, Any] | None = None,
        *,
        num_api_spec_tokens: int | None = None,
        past: Past | None = None,
    ) -> None:
        parameters = list(inspect.signature(body).parameters.values())
        if not parameters or parameters[0].kind in (parameters[0].KEYWORD_ONLY, parameters[0].VAR_KEYWORD):
            raise ProgramError(
                f"{body.__qualname__} needs a first parameter, for the state: def {body.__name__}(s, ...)",
                code="invalid_program",
                place=caller(),
            )
        for parameter in parameters:
            if parameter.name in _RESERVED:
                raise ProgramError(
                    f"{body.__qualname__} cannot have a parameter {parameter.name!r}: `run` has one of that name",
                    code="invalid_program",
                    param=parameter.name,
                )
        if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
            raise ProgramError(
                f"{body.__qualname__} has a `yield`: a program's body is a plain function or an `async def`",
                code="invalid_program",
            )
        self.body = body
        self.bound = dict(bound or {})
        self.num_api_spec_tokens = num_api_spec_tokens
        self._past = past
        needed = [one for one in parameters[1:] if one.default is one.empty and one.name not in self.bound]
        free = [one for one in parameters[1:] if one.name not in self.bound]
        self._has_one = len(free) == 1 and free[0].kind in _POSITIONAL
        self._takes_one = len(needed) <= 1 and any(one.kind in _POSITIONAL for one in parameters[1:])
        self._own_names = {parameter.name for parameter in parameters[1:]}
        self._takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        functools.update_wrapper(self, body)

    def __repr__(self) -> str:
        return f"<function {self.body.__qualname__}>"

    if not TYPE_CHECKING:  # type checkers say it themselves

        @users_lines
        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute("a program", name, _MEANT, dir(type(self)))

    def bind(self, **kwargs: Any) -> Self:
        """The same program with some arguments or sampling defaults filled in; a call overrides them."""
        bound = {**self.bound, **kwargs}
        return type(self)(self.body, bound, num_api_spec_tokens=self.num_api_spec_tokens, past=self._past)

    @located
    @_one_past
    def after(self, past: State[Any] | Conversation | None, /) -> Self:
        """The same program as a continuation: its runs begin with all that `past` holds, messages and variables. Each
        run is a new state; `past` stays as it is. None is an empty history, as of a chat that begins.

        Runs on the backend and in the namespace of `past`, unless others are given.

        >>> state = ask.run("What is the capital of France?")
        >>> state = ask.after(state).run("And of Japan?")

        Raises:
            ProgramError: the program that `past` is the state of has failed.
        """
        conversation = past.conversation() if isinstance(past, State) else Conversation() if past is None else past
        if not isinstance(conversation, Conversation):
            messages = " (write bough.Conversation(messages))" if isinstance(past, list | tuple | dict) else ""
            raise wrong_kind("past", f"a state or a Conversation{messages}", past)
        around = {"backend": conversation.backend, "namespace": conversation.namespace or None}
        bound = {**{name: value for name, value in around.items() if value is not None}, **self.bound}
        past_here = Past(conversation, caller())
        return type(self)(self.body, bound, num_api_spec_tokens=self.num_api_spec_tokens, past=past_here)

    def _refuse_past(self, what: str) -> None:
        """Raises if this is a continuation, which can only be run."""
        if self._past is not None:
            raise ProgramError(
                f"a continuation, {self.__name__}.after(...), cannot be {what}: run it",
                code="invalid_program",
                place=caller(),
            )

    @overload
    def __call__(self, state: State[Any], /, *args: Any, **kwargs: Any) -> Result: ...
    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> State[Result]: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program like `run`, or like `arun` if its body is a coroutine function.

        Inside the body of another program there are two more uses: with that program's state as first argument, it
        records there and returns what the body returns; `s += other(topic)` does the same. Otherwise it runs
        separately, with the caller's backend and sampling defaults, when something is read from it or it is awaited.
        """
        if args and isinstance(args[0], State):
            self._refuse_past("recorded in another program")
            result = self.body(*args, **{**self.bound, **kwargs})
            return args[0]._watched(result, f"{self.__name__}(s, ...)") if inspect.iscoroutine(result) else result
        scope = current.get()
        if scope is not None:
            called = NestedState(self, scope, args, kwargs)
            scope.session.body.awaited.expect(called, f"{self.__name__}(...)")
            return called
        return self.arun(*args, **kwargs) if self.is_async else self.run(*args, **kwargs)

    @property
    def is_async(self) -> bool:
        """Tells whether the body is a coroutine function."""
        return inspect.iscoroutinefunction(self.body)

    def run(self, *args: Any, stream: bool = False, **kwargs: Any) -> State[Result]:
        """Runs the program and waits for it to end. With `stream=True` this returns at once, while the program runs in
        the background: a plain body on its own thread, a coroutine function on an event loop that the process keeps.

        Raises:
            ProgramError: the program is wrong, or failed; the error names the line.
        """
        with users_lines:
            return self._run(self._call(args, kwargs), stream=stream)

    def _run(self, call: Invocation, *, stream: bool) -> State[Result]:
        on_loop = in_body()
        if stream:
            run = Run(call, TaskDriver() if on_loop or self.is_async else PullDriver())
            if on_loop:
                run.start_task()
            else:
                run.start()
            return run.state
        if on_loop:
            return wait_for(Run(call, TaskDriver()).aexecute())
        if not self.is_async:
            return Run(call, PullDriver()).execute()
        if on_a_loop():
            raise ProgramError(
                f"this would block the event loop: {call.name} is a coroutine function, use "
                f"`await {call.name}.arun(...)`",
                code="invalid_program",
                place=caller(),
            )
        return run_blocking(Run(call, TaskDriver()).aexecute())

    def arun(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, State[Result]]:
        """Runs the program in async code; cancelling the task stops it. The body may be a coroutine function.

        A plain body runs on the event loop's own thread, too, and yields to other tasks whenever it reads.

        >>> state = await capital.arun("France")
        """
        with users_lines:
            running = Run(self._call(args, kwargs), TaskDriver()).aexecute()
            return Promised(running, f"await {self.__name__}.arun(...)")

    def stream(self, *args: Any, **kwargs: Any) -> EventStream[Result]:
        """Runs the program and yields its events (Delta, Value, ...) for `for` and `async for`. Leaving early stops it.

        >>> for text in capital.stream("France").text():
        ...     print(text, end="")
        """
        with users_lines:
            return EventStream(self._call(args, kwargs, log=True))

    astream = stream

    @overload
    def run_batch(
        self,
        batch: Sequence[Any],
        *,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: Literal[False] = False,
        **kwargs: Any,
    ) -> list[State[Result]]: ...
    @overload
    def run_batch(
        self,
        batch: Sequence[Any],
        *,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: Literal[True],
        **kwargs: Any,
    ) -> Generator[State[Result], None, None]: ...
    @users_lines
    def run_batch(
        self,
        batch: Sequence[Any],
        *,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        **kwargs: Any,
    ) -> list[State[Result]] | Generator[State[Result], None, None]:
        """Runs the program for each item, a dict or tuple of arguments, many at once. Returns the states in order.
        If the program has one parameter, an item may be its value, a list too: `f.run_batch(["France", "Japan"])`.

        With `num_threads="auto"` the bodies take turns on one event loop: each yields to the others whenever it reads.
        A body that blocks in other ways (time.sleep, requests, files) blocks all others; with a number, that many
        bodies run at once, each plain body on its own thread.

        A failed run does not affect the others: its state's `error()` says why, and reading from it raises the error.
        `generator_style` yields the states as they finish, still in order. `kwargs` are those of `run`.

        >>> states = capital.run_batch([{"country": "France"}, {"country": "Japan"}], temperature=0)
        """
        make, num_items = self._split_batch(batch, kwargs)
        at_once = count_at_once(num_threads)
        if num_threads == "auto" or self.is_async:
            if not generator_style:
                return run_blocking(alist(make, num_items, at_once, progress_bar=progress_bar))
            return on_loop(make, num_items, at_once, progress_bar=progress_bar)
        states = on_threads(make, num_items, at_once, progress_bar=progress_bar)
        return states if generator_style else States(states)

    async def arun_batch(
        self,
        batch: Sequence[Any],
        *,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        **kwargs: Any,
    ) -> list[State[Result]]:
        """`run_batch` for async code. `num_threads` limits how many run at once; no threads are used."""
        with users_lines:
            make, num_items = self._split_batch(batch, kwargs)
        return await alist(make, num_items, count_at_once(num_threads), progress_bar=progress_bar)

    def _split_batch(self, batch: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Maker, int]:
        """Checks what can be checked before anything runs; how to make the run of each item, and how many there are."""
        check_batch(batch)
        items = [split_item(item, takes_one=self._takes_one, takes_list=self._has_one) for item in batch]
        shared = {**kwargs, "backend": resolve_backend(kwargs.get("backend"))}
        self._call((), shared)

        def make(index: int, driver: PullDriver | TaskDriver) -> Run:
            args, own = items[index]
            try:
                call = self._call(args, {**shared, **own})
                if own.get("seed") is None:
                    call = call._replace(defaults=apart(call.defaults, OF_ITEMS, index))
            except (BoughError, TypeError) as error:  # what is wrong with one item is that item's failure
                call = self._call((), shared)._replace(refusal=error)
            return Run(call, driver)

        return make, len(items)

    @users_lines
    def compile(self, optimisations: Collection[str] | None = None, /, **known: Any) -> CompiledProgram:
        """Compiles the program to data, with placeholders for the arguments that are not `known`: to print, save,
        estimate, deploy.

        The body runs once, with placeholders. Its Python loops and conditions must not depend on values that are not
        known yet; write those that the engine can decide with `when` and `repeat_until`. `optimisations` lists those to
        apply ("unread", "overlap", "prefixes"); by default all.

        >>> print(capital.compile(temperature=0))

        Raises:
            CompileError: the body inspects a value that is known only when it runs; the error names the line.
        """
        from .compile.build import compile_body  # noqa: PLC0415  the compiler, once it is asked for

        self._refuse_past("compiled")
        arguments = {**self.bound, **known}
        options = {name: arguments.pop(name) for name in list(arguments) if self._is_option(name)}
        return compile_body(self.body, arguments, clean_options(options), optimisations=optimisations)

    @users_lines
    def explain(self, *, tokenizer: Encoder | None = None, **known: Any) -> str:
        """Explains what a run with these arguments will do and its maximum cost: instructions, each call, the longest
        chain of dependent calls, and shared text. Nothing is generated; the body runs with placeholders for unknown
        values. If the program cannot be compiled: the line, the reason, and what comes before it.

        With the model's tokenizer (`LLM.tokenizer`, `load_tokenizer(path)`), tokens are counted exactly.

        >>> print(capital.explain(country="France"))
        """
        from .compile.explain import explain  # noqa: PLC0415  as above

        self._refuse_past("explained")
        arguments, bound = dict(known), dict(self.bound)
        options = {name: bound.pop(name) for name in list(bound) if self._is_option(name)}
        options |= {name: arguments.pop(name) for name in list(arguments) if self._is_option(name)}
        return explain(self.body.__name__, self.body, bound, arguments, clean_options(options), tokenizer)

    def trace(self, *, backend: Backend | None = None, **known: Any) -> CompiledProgram:
        """SGLang's name for `compile`: print the result to see the instructions. Needs no backend."""
        return self.compile(**known)

    @users_lines
    def cache(self, backend: Backend | None = None) -> None:
        """Makes the backend compute the common beginning of all runs: the text up to the first unbound argument.

        The body runs with placeholders, up to where it inspects one.
        """
        from .compile.prefix import cache_prefix  # noqa: PLC0415  the compiler, once it is asked for

        self._refuse_past("cached")
        known = dict(self.bound)
        options = {name: known.pop(name) for name in list(known) if self._is_option(name)}
        title = self.body.__name__
        cache_prefix(title, self.body, known, clean_options(options), resolve_backend(backend))

    def _is_option(self, name: str) -> bool:
        return name in OPTION_NAMES and name not in self._own_names

    @located
    def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, log: bool = False) -> Invocation:
        """Makes the call: what to run and how. `None` for a way to run is the same as leaving it out."""
        fields = {**self.bound, **kwargs}
        backend = resolve_backend(fields.pop("backend", None))
        settings = Settings(
            title=self.body.__name__,
            log=log,
            trace=checked_flag("trace", fields.pop("trace", None)),
            namespace=fields.pop("namespace", None) or "",
            timeout_s=checked_timeout(fields.pop("timeout_s", None)),
            spec_tokens=self.num_api_spec_tokens or 0,
        )
        if not isinstance(settings.namespace, str):
            raise wrong_kind("namespace", "text", settings.namespace)
        options = {name: fields.pop(name) for name in list(fields) if self._is_option(name)}
        unknown = () if self._takes_any else fields.keys() - self._own_names
        for name in unknown:
            refuse_policy(fields[name])
            if name in _ELSEWHERE:
                raise TypeError(f"there is no option {name!r}{_ELSEWHERE[name]}")
            meant = nearest(name, {*self._own_names, *OPTION_NAMES, *_RESERVED})
            raise TypeError(f"{self.body.__qualname__}() got an unexpected keyword argument {name!r}{meant}")
        defaults = clean_options(options)
        return Invocation(self.body.__name__, self.body, args, fields, defaults, backend, settings, past=self._past)


class AsyncFunction(Function[Result]):
    """A program whose body is a coroutine function."""

    @overload  # type: ignore[override]
    def __call__(self, state: State[Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Result]: ...
    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, State[Result]]: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program, `await f(...)`; with a program's state as first argument it records there."""
        return super().__call__(*args, **kwargs)


class NestedState(State[Result]):
    """A call of a program inside another: recorded there if it is appended, run on its own if it is read from.

    After it has been appended, it is what was recorded: its values are read there, and nothing is run again.
    """

    def __init__(self, function: Function[Result], scope: Scope, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._function = function
        self._scope = scope
        self._args = args
        self._kwargs = kwargs
        self._started: State[Result] | None = None
        self._num_appended = 0
        self._number = scope.session.body.num_calls
        scope.session.body.num_calls += 1

    @property
    def _branch(self) -> Branch:
        if self._num_appended > 1:
            raise ProgramError(
                f"{self._function.__name__}(...) was appended {self._num_appended} times: read from the states that it "
                "was appended to",
                code="invalid_program",
                place=caller(),
            )
        if self._started is None:
            if self._scope.on_loop and not in_body():
                name = self._function.__name__
                raise ProgramError(
                    f"this would block the event loop: in a coroutine, use `await {name}(...)`",
                    code="invalid_program",
                    place=caller(),
                )
            self._take(self._function.run(*self._args, **self._around()))
        assert self._started is not None
        return self._started._branch

    def __await__(self) -> Generator[Any, None, Self]:
        return self._arun().__await__()

    @property
    def is_unused(self) -> bool:
        """Neither appended nor read from."""
        return self._started is None

    def __repr__(self) -> str:
        if self._started is None:
            return f"<{type(self).__name__} of {self._function.__name__}, neither appended nor read from yet>"
        return super().__repr__()

    def _repr_html_(self) -> str:
        if self._started is None:  # looking at it must not run it
            return text_view(self._function.__name__, "called, but neither appended nor read from yet")
        return super()._repr_html_()

    async def _begin(self) -> None:
        await self._arun()

    async def _arun(self) -> Self:
        if self._started is None:
            self._take(await self._function.arun(*self._args, **self._around()))
        return self

    def _around(self) -> dict[str, Any]:
        """All keyword arguments of the call: what it does not say is as in the program around it."""
        inherited: Branch = self._scope.state._branch
        session, settings = inherited.session, inherited.session.settings
        around = {"backend": session.backend, "namespace": settings.namespace, "trace": settings.trace}
        defaults = apart(inherited.defaults, OF_CALLS, self._number)
        options = {name: value for name, value in defaults.items() if self._function._is_option(name)}
        return {**around, "timeout_s": session.time_left(), **options, **self._kwargs}

    def _take(self, state: State[Result]) -> None:
        self._started = state
        self._return(state.ret_value)

    def _append_to(self, state: State[Any]) -> None:
        if self._started is not None and not self._num_appended:
            super()._append_to(state)
        branch = state._branch
        before = dict(branch.variables)
        result = self._function(state, *self._args, **self._kwargs)
        if inspect.iscoroutine(result):
            if not in_body():
                result.close()
                name = self._function.__name__
                raise ProgramError(
                    f"{name} is a coroutine function: record it with `await {name}(s, ...)`",
                    code="invalid_program",
                    place=caller(),
                )
            result = wait_for(result)
        self._num_appended += 1
        self._started = State(branch.recorded_since(before))
        self._return(result)
