"""State `s` of a program's body, for appending, reading and forking."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Self, TypeVar, Unpack, overload

import msgspec

from ...runtime.protocol.errors import RequestError
from ...runtime.protocol.request import Usage
from ..diagnostics.errors import ProgramError
from ..diagnostics.source_lines import caller, located, no_attribute, users_lines
from ..observe.timelines.timeline import Timeline
from ..record.expression import Expression, Generate, RoleClose, RoleOpen, Series
from ..record.options import OPTION_NAMES, SamplingOptions, clean_options, nearest, wrong_kind
from ..record.variables import Entry, elements_of
from ..session.body import Promised, current
from ..session.branch import Branch, Reference
from ..session.samples import cancel, samples_of
from ..tools.offered import ToolCall
from ..types.schema import check_constraint, typed
from . import streaming
from . import values as reader
from .conversation import Conversation, conversation_of
from .group import Group
from .notebook import described, state_view
from .streaming import Stream

if TYPE_CHECKING:
    import typing_extensions

    Result = typing_extensions.TypeVar("Result", default=Any)
else:
    Result = TypeVar("Result")
Kind = TypeVar("Kind")

_MEANT = {
    **dict.fromkeys(("append", "add", "extend", "write"), "append with s += ..."),
    **{
        name: f"append it, s += bough.{name}(...)"
        for name in ("gen", "gen_int", "gen_string", "select", "use", "when", "repeat_until", "image", "video")
    },
    "var": "that is bough.var(name), or s.ref(name)",
    "join": "join the group that s.fork(...) returns: branches.join()",
    "run": "a program is run, f.run(...), not its state",
    **dict.fromkeys(("tool_calls", "toolcalls"), "s.calls(name) lists the calls of tools"),
    **dict.fromkeys(
        ("finish_reason", "meta", "meta_info", "metadata"), 's.get_meta_info(name) has it, as ["finish_reason"]'
    ),
    **dict.fromkeys(
        ("logprob", "logprobs", "log_probs"),
        's.get_meta_info(name)["output_token_logprobs"] has them, if gen(name, logprobs=1) asks for them',
    ),
    **dict.fromkeys(("partial", "partials"), "s.stream(name, partial=True) streams typed parts"),
    **dict.fromkeys(("count_tokens", "tokens", "n_tokens"), "that is s.num_tokens"),
    **dict.fromkeys(("arun", "run_async"), "a program is run, f.arun(...), not its state"),
    "after": "f.after(state).run(...) continues it",
    "trim": "bough.KeepLast(turns=8).trim(state) shortens it",
    "load": "f.after(bough.Conversation.load(path)).run(...) continues what was saved",
    "save": "state.conversation().save(path) saves it",
    **dict.fromkeys(
        ("items", "result", "results", "value", "output", "outputs", "return_value", "returned"),
        "what the body has returned is state.ret_value; s[name] is a variable, and s.values() a dict of all",
    ),
}
"""Likely meanings of attributes that do not exist."""


class State(Generic[Result]):
    """A branch of a program. Appending records; reading sends what is recorded and waits for the value.

    A program's states are used by one thread at a time; different programs may run in different threads.

    >>> s += user("Name a colour.") + assistant(gen("colour", max_tokens=4))
    >>> s["colour"]
    'Blue'
    """

    _group: Group[State[Any]] | None = None
    """Group of a copy, which ends with its block."""

    _returned: Any = None
    """Result of the body; set only on a program's own state."""

    def __init__(self, branch: Branch) -> None:
        self._own = branch

    @property
    def _branch(self) -> Branch:
        return self._own

    def __repr__(self) -> str:
        return self._described(self._branch)

    def _described(self, branch: Branch) -> str:
        where = f", branch {branch.id}" if branch.id else ""
        found = described(branch)
        return f"<{type(self).__name__} of {branch.session.settings.title}{where}{found}>"

    @property
    def ret_value(self) -> Result:
        """The result of the body; None before there is one.

        Raises:
            ProgramError: the program has failed.
        """
        if "_returned" not in vars(self):
            raise AttributeError(name="ret_value")  # of a branch: __getattr__ says it
        session = self._branch.session
        if session.ended_early:
            with users_lines:
                session.raise_error()
        returned: Result = self._returned
        return returned

    def _return(self, result: Any) -> None:
        """Takes what the body has returned."""
        self._returned = result

    def __format__(self, spec: str) -> str:
        if current.get() is not None:
            raise ProgramError(
                "a state cannot be used in an f-string: read a variable of it with s[name], or all text with s.text()",
                code="invalid_program",
                place=caller(),
            )
        return format(repr(self), spec)

    def _repr_html_(self) -> str:
        return state_view(self._branch, None if isinstance(self._returned, State) else self._returned)

    # Appending

    def __iadd__(self, other: str | Expression | State) -> Self:
        """Appends text, an expression, or the instructions of another `@function`: `s += examples(topic)`."""
        if isinstance(other, State):
            other._append_to(self)
        else:
            self._branch.append(other)
        return self

    if not TYPE_CHECKING:  # type checkers say it themselves

        def __add__(self, other: object) -> NoReturn:
            raise ProgramError("a state is appended to with s += ...", code="invalid_program", place=caller())

        @users_lines
        def __getattr__(self, name: str) -> NoReturn:
            is_variable = not name.startswith("_") and name in self._branch.variables
            meant = {**_MEANT, name: f"read the variable with s[{name!r}]"} if is_variable else _MEANT
            raise no_attribute("a state", name, meant, dir(type(self)))

    def _append_to(self, state: State) -> None:
        raise ProgramError(
            "the state of a program cannot be appended; read from it, and append what you read, or continue it with "
            "f.after(state).run(...)",
            code="invalid_program",
            place=caller(),
        )

    @overload
    def system(self) -> AbstractContextManager[None]: ...
    @overload
    def system(self, expression: str | Expression) -> None: ...
    def system(self, expression: str | Expression | None = None) -> AbstractContextManager[None] | None:
        """Appends a system message; without an expression, what is appended inside `with` is the message."""
        return self._message("system", expression)

    @overload
    def user(self) -> AbstractContextManager[None]: ...
    @overload
    def user(self, expression: str | Expression) -> None: ...
    def user(self, expression: str | Expression | None = None) -> AbstractContextManager[None] | None:
        """Appends a user message; without an expression, what is appended inside `with` is the message."""
        return self._message("user", expression)

    @overload
    def assistant(self) -> AbstractContextManager[None]: ...
    @overload
    def assistant(self, expression: str | Expression) -> None: ...
    def assistant(self, expression: str | Expression | None = None) -> AbstractContextManager[None] | None:
        """Appends an assistant message; without an expression, what is appended inside `with` is the message."""
        return self._message("assistant", expression)

    def _message(self, role: str, expression: str | Expression | None) -> AbstractContextManager[None] | None:
        if expression is None:
            return self._inside(role)
        self._branch.append(Series((RoleOpen(role), expression, RoleClose(role))))
        return None

    @contextlib.contextmanager
    def _inside(self, role: str) -> Iterator[None]:
        self._branch.append(RoleOpen(role))
        yield
        self._branch.append(RoleClose(role))

    @contextlib.contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """Makes what is appended inside the variable `name`, without the chat template's own text."""
        self._branch.settle()
        start = len(self._branch.marks)
        yield
        self._branch.keep_passage(name, start)

    # Forks

    def fork(
        self, size: int = 1, position_ids_offset: object = None, *, isolated: bool = False, retries: int = 0
    ) -> Group[State[Any]]:
        """Creates `size` branches that continue from here in parallel. They share everything cached.

        isolated   a failure in a branch ends only that branch: reading its values raises the error; see `Group.join`
        retries    a failing branch is restarted up to this many times; needs `isolated`

        >>> for branch, aspect in zip(s.fork(2), ("price", "quality")):
        ...     branch += f"The {aspect} is" + gen("note")
        """
        if position_ids_offset is not None:
            raise RequestError(
                "position_ids_offset has no effect: leave it out",
                code="unsupported_parameter",
                param="position_ids_offset",
            )
        return Group(self, [State(branch) for branch in self._branch.fork(size, isolated=isolated, retries=retries)])

    def fork_samples(
        self, expression: str | Expression, n: int | None = None, *, isolated: bool = False
    ) -> Group[State[Any]]:
        """Creates `n` branches, each continuing from its own sample of what `expression` generates.

        Without `n`, as many as the first generation in `expression` requests with `n=`. With a `seed`, the samples are
        those of `gen(n=...)`. After the join, the variable is the list of all samples.

        >>> ideas = s.fork_samples(assistant(gen("idea", temperature=0.9)), 4)
        >>> ideas += user("Rate this idea.") + assistant(gen("rating", int))
        >>> ideas.join()
        """
        size, samples = samples_of(expression, n, self._branch.defaults)
        group = self.fork(size, isolated=isolated)
        for branch, sample in zip(group, samples, strict=True):
            branch += sample
        return group

    def copy(self, position_ids_offset: object = None) -> State[Any]:
        """A branch for text that should not become part of this one. As a context manager it is joined when the block
        ends: the variables that it has set become lists of one."""
        group = self.fork(1, position_ids_offset)
        group[0]._group = group
        return group[0]

    def cancel(self) -> None:
        """Stops this branch and all branches forked from it at once, whatever they wait for; also from a thread or task
        other than the body's. Values that have arrived stay; reading others raises a ProgramError, code "cancelled".
        """
        cancel(self._branch)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None and self._group is not None:
            self._group.join()
        else:
            self._branch.end()

    # Variables

    @users_lines
    def __getitem__(self, name: str) -> Any:
        """The variable's value, of the type that its `gen` asked for. Sends what is recorded, and waits.

        After a join it is a list. With n > 1 it is a list of samples; the text continues with the first.
        """
        if isinstance(name, int | slice):  # also where it is iterated over
            raise ProgramError(
                "this is a State, which has no elements: what the body has returned is state.ret_value, s[name] is a "
                "variable, and s.text_iter() streams the text",
                code="invalid_program",
                place=caller(),
            )
        return reader.read(self._branch, reader.known(self._branch, name))

    @overload
    def get(self, name: str, kind: type[Kind]) -> Kind: ...
    @overload
    def get(self, name: str, kind: object = None) -> Any: ...
    @users_lines
    def get(self, name: str, kind: object = None) -> Any:
        """The same as a value of the type `kind`, visible to type checkers: text and dicts are converted to it.

        >>> age = s.get("age", int) + 1

        Raises:
            ProgramError: it is not of that type, code "invalid_output".
        """
        if isinstance(kind, str) and not kind.strip().startswith("{"):
            raise wrong_kind("kind", "a type, since there is no default", kind)
        return self[name] if kind is None else reader.as_kind(self._branch, name, self[name], kind)

    @overload
    def aget(self, name: str, kind: type[Kind]) -> Coroutine[Any, Any, Kind]: ...
    @overload
    def aget(self, name: str, kind: object = None) -> Coroutine[Any, Any, Any]: ...
    def aget(self, name: str, kind: object = None) -> Coroutine[Any, Any, Any]:
        """The variable's value, in async programs: `await s.aget("x")`."""
        promised = Promised(self._aget(name, kind), f"await s.aget({name!r}), or in a plain function s[{name!r}]")
        return self._watched(promised, f"s.aget({name!r})")

    def _watched(self, coroutine: Coroutine[Any, Any, Kind], what: str) -> Coroutine[Any, Any, Kind]:
        """`coroutine`, which somebody in the program's body must await."""
        scope = current.get()
        if scope is not None:
            scope.session.body.awaited.watch(coroutine, what)
        return coroutine

    async def _aget(self, name: str, kind: object) -> Any:
        with users_lines:
            await self._begin()
            value = await streaming.aread(self._branch, name)
            return value if kind is None else reader.as_kind(self._branch, name, value, kind)

    async def _begin(self) -> None:
        """Begins what must begin before it can be read from: a call of another program."""

    def __setitem__(self, name: str, value: object) -> None:
        """Sets a variable: a Python value, or a reference. Sends nothing."""
        self._branch.assign(name, value)

    @users_lines
    def history(self, name: str) -> list[Any]:
        """All values of the generations called `name` in this branch, in order: of all turns of a loop."""
        return reader.history(self._branch, name)

    @users_lines
    def calls(self, name: str) -> list[ToolCall]:
        """The calls that the model made before its answer `name`, in order, with what came of them.

        >>> s += call_tools("answer", [weather])
        >>> s.calls("answer")
        [ToolCall(name='weather', arguments={'city': 'Vienna'}, result='18 degrees', error=None)]
        """
        return reader.calls(self._branch, name)

    def __contains__(self, name: object) -> bool:
        branch = self._branch
        return name in branch.variables or (branch.attempts is not None and branch.attempts.name == name)

    @users_lines
    def values(self) -> dict[str, Any]:
        """The values of all variables of this branch. After the program has failed: those that had arrived."""
        return reader.values(self._branch)

    def ref(self, name: str, index: int | None = None) -> Reference:
        """The variable's text, to be appended before it exists: reads nothing, so everything stays one request.

        `index` picks one value of a list that a join has collected.

        >>> s += "Summary: " + s.ref("summary")
        """
        branch = self._branch
        branch.settle()
        if name not in branch.variables and branch.session.records_here:
            branch.look_up(name, f"; what a block of a when or repeat_until will set is bough.var({name!r})")
        entry: Entry | None = reader.known(self._branch, name)
        if index is not None:
            elements = elements_of(entry)
            if type(index) is not int or not -len(elements) <= index < len(elements):
                of = f"it has {len(elements)}" if elements else "it is not a list collected by a join"
                raise ProgramError(f"{name!r} has no element {index!r}: {of}", code="unknown_variable", place=caller())
            entry = elements[index]
        if entry is None:
            raise ProgramError(f"branch {index} has no {name!r}", code="unknown_variable", place=caller())
        return Reference(name, entry, self._branch.session)

    @users_lines
    def json(self, name: str) -> Any:
        """The variable's text, parsed as JSON: for values under a schema given as dict or text."""
        return reader.read(self._branch, reader.known(self._branch, name), msgspec.json.decode)

    # What is known about it

    @users_lines
    def text(self) -> str:
        """The whole text of this branch, including the chat template's. Waits for everything recorded.

        After the program has failed: what had arrived, without the template's text.
        """
        return streaming.text(self._branch)

    @users_lines
    def messages(self) -> list[dict[str, str]]:
        """The chat so far, as role and content. Waits for all of it; after the program has failed: what had arrived."""
        return streaming.messages(self._branch)

    @users_lines
    def conversation(self) -> Conversation:
        """The messages and variables as plain data: to continue (`Function.after`), count, trim, save. Waits for all of
        it.

        >>> state.conversation().save("talk.json")
        """
        return conversation_of(self._branch)

    @property
    @users_lines
    def num_tokens(self) -> int:
        """Number of tokens of this branch, the chat template's included. Waits for everything recorded.

        APIs have no tokenizer: there it is the number that came with the latest answer.
        """
        return streaming.num_tokens(self._branch)

    @users_lines
    def get_meta_info(self, name: str) -> dict[str, Any]:
        """Returns metadata of a value: finish reason, tokens, seconds, and log-probabilities if requested."""
        return reader.meta_info(self._branch, reader.known(self._branch, name))

    @users_lines
    def probabilities(self, name: str) -> dict[str, float]:
        """The probability of each choice of a select.

        >>> s.probabilities("verdict")
        {'positive': 0.93, 'negative': 0.07}
        """
        return self._branch.session.reading.probabilities(self._branch, name, reader.known(self._branch, name))

    @overload
    def stream(self, what: str, *, partial: Literal[False] = ...) -> Stream[str]: ...
    @overload
    def stream(self, what: str, *, partial: bool) -> Stream[Any]: ...
    @overload
    def stream(self, what: type[Kind], *, name: str = ..., **options: Unpack[SamplingOptions]) -> Stream[Kind]: ...
    @overload
    def stream(self, what: object, *, name: str = ..., **options: Unpack[SamplingOptions]) -> Stream[Any]: ...
    @users_lines
    @located
    def stream(
        self, what: object = None, *, partial: bool = False, name: str | None = None, **options: Unpack[SamplingOptions]
    ) -> Stream[Any]:
        """Streams a variable, for `for` and `async for`: its text, or with `partial` its typed value.

        A typed value is yielded each time more of it is complete, as an object with only the complete parts set, and
        at the end as a whole. `what` can also be its type: then it is the latest value of that type, and in a
        program's body a new one is requested (as `name`, with `options`) unless there is one not streamed yet.

        >>> for delta in s.stream("story"):
        ...     print(delta, end="")
        >>> async for invoice in s.stream(Invoice, max_tokens=200):
        ...     show(invoice)
        """
        branch = self._branch
        if what is None:
            message = "stream takes a variable's name, or a type: s.text_iter() streams all text"
            raise ProgramError(message, code="invalid_program", param="what", place=caller())
        if isinstance(what, str):
            unknown = next((option for option in options if option not in OPTION_NAMES), None)
            if unknown is not None:
                hint = nearest(unknown, ("partial", "name")) or ": with a name there is one, partial=True"
                raise TypeError(f"stream() has no option {unknown!r}{hint}")
            if name is not None or options:
                raise TypeError("options are for a value that stream asks for itself: give its type, not a name")
            return streaming.value_stream(branch, what) if partial else streaming.text_stream(branch, what)
        if not branch.session.records_here:
            return streaming.kind_stream(branch, what)
        branch.settle()
        slot = streaming.slot_of(branch, what)
        if slot is None or slot.streamed or name is not None or options:
            grammar, convert, kind = typed(what)
            check_constraint(grammar, "what")
            branch.append(Generate(name, clean_options(options), grammar, convert, None, caller(), kind))
            slot = streaming.slot_of(branch, what)
        assert slot is not None
        slot.streamed = True
        return streaming.slot_stream(branch, slot)

    @users_lines
    def sync(self) -> None:
        """Sends what is recorded, and waits for it to finish."""
        reader.sync(self._branch)
        self._branch.session.raise_error()

    def asettle(self) -> Coroutine[Any, Any, None]:
        """`sync` for async programs. Afterwards, reading from this state does not wait."""
        return self._watched(Promised(self._asettle(), "await s.asettle()"), "s.asettle()")

    async def _asettle(self) -> None:
        session = self._branch.session
        with users_lines:
            await session.asettle()
            session.send()
            await session.await_until(lambda: session.running is None)
            session.raise_error()

    def error(self) -> BaseException | None:
        """Returns the error that ended the program, or None. Waits for the end, except in the body itself."""
        session = self._branch.session
        if not session.records_here:
            reader.sync(self._branch)
        return session.error

    @property
    def usage(self) -> Usage:
        """Tokens of all finished requests; for a failed one, those of the values that had arrived."""
        return self._branch.session.tally.usage

    @users_lines
    def timeline(self) -> Timeline:
        """Returns the origin and time of each token. The program must have been run with `trace=True`."""
        session = self._branch.session
        if not session.settings.trace:
            raise ProgramError(
                "there is no timeline: run the program with trace=True", code="not_traced", place=caller()
            )
        reader.sync(self._branch)
        timeline = Timeline.of(
            session.ops,
            session.tally.log,
            title=session.settings.title,
            num_programs=len(session.outbox.submissions),
            began_s=session.tally.began,
            refused=session.tally.refused,
        )
        timeline.fail(session.error)
        return timeline

    # Under SGLang's names

    def get_var(self, name: str) -> Any:
        """`s[name]`."""
        return self[name]

    def set_var(self, name: str, value: object) -> None:
        """`s[name] = value`."""
        self[name] = value

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The variable's text as it arrives; without a name, all text of the branch except the chat template's."""
        return streaming.text_stream(self._branch, var_name)

    @overload
    def text_async_iter(
        self, var_name: str | None = ..., return_meta_data: Literal[False] = ...
    ) -> AsyncIterator[str]: ...
    @overload
    def text_async_iter(
        self, var_name: str, return_meta_data: Literal[True]
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]: ...
    def text_async_iter(self, var_name: str | None = None, return_meta_data: bool = False) -> AsyncIterator[Any]:
        """`text_iter` for async programs and for tasks that watch one.

        With `return_meta_data`, each piece of the variable's text comes with the metadata known so far: with
        `return_logprob`, the `output_token_logprobs` of all tokens and their number, as far as the backend reports them
        while it generates. The last piece comes with the complete metadata (`get_meta_info`).
        """
        if not return_meta_data:
            return streaming.text_stream(self._branch, var_name)
        if var_name is None:
            raise ProgramError("return_meta_data needs the name of a variable", param="var_name", place=caller())
        return streaming.described_stream(self._branch, var_name)
