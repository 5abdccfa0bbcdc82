"""What a program's body holds: `s` to append to and to read from, and the branches of a fork."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload

import msgspec

from ..runtime.program import JoinMode
from ..runtime.request import Usage
from . import reader, streaming
from .branch import Branch, Reference
from .entry import Entry, Gathered
from .errors import ProgramError
from .expression import Expression, Generate, RoleClose, RoleOpen, Series, items_of
from .options import SamplingOptions, clean_options
from .place import caller
from .schema import typed
from .streaming import Stream
from .timeline import Timeline

Kind = TypeVar("Kind")

_JOIN_MODES: dict[str, JoinMode] = {
    "gather": "gather",
    "append": "append",
    "gather_variable": "gather",
    "concate_and_append": "append",
}


class State:
    """A branch of a program. Appending records; reading sends what is recorded and waits for the value.

    A program's states are used by one thread at a time; different programs may run in different threads.

    >>> s += user("Name a colour.") + assistant(gen("colour", max_tokens=4))
    >>> s["colour"]
    'Blue'
    """

    ret_value: Any = None
    """What the body returned."""

    def __init__(self, branch: Branch) -> None:
        self._own = branch

    @property
    def _branch(self) -> Branch:
        return self._own

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._branch.session.settings.title}, branch {self._branch.id}>"

    # Appending

    def __iadd__(self, other: str | Expression | State) -> Self:
        """Appends text, an expression, or the instructions of another `@function`: `s += examples(topic)`."""
        if isinstance(other, State):
            other._append_to(self)
        else:
            self._branch.append(other)
        return self

    def _append_to(self, state: State) -> None:
        raise ProgramError(
            "the state of a program cannot be appended; read from it, and append what you read",
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
        self._branch.append(Series((RoleOpen(role), *items_of(expression), RoleClose(role))))
        return None

    @contextlib.contextmanager
    def _inside(self, role: str) -> Iterator[None]:
        self._branch.append(RoleOpen(role))
        yield
        self._branch.append(RoleClose(role))

    @contextlib.contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """What is appended inside becomes the variable `name`, without the chat template's own text."""
        start = len(self._branch.transcript)
        yield
        self._branch.keep_passage(name, start)

    # Forks

    def fork(self, size: int = 1) -> Group:
        """`size` branches that go on from here side by side. They share all that is cached.

        >>> for branch, aspect in zip(s.fork(2), ("price", "quality")):
        ...     branch += f"The {aspect} is" + gen("note")
        """
        return Group(self, [State(branch) for branch in self._branch.fork(size)])

    def copy(self) -> State:
        """A branch for what this one shall not remember; as a context manager it ends with the block."""
        return self.fork(1)[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._branch.closed = "its block has ended"

    # Variables

    def __getitem__(self, name: str) -> Any:
        """The variable's value, of the type that its `gen` asked for. Sends what is recorded, and waits.

        After a join it is a list. With n > 1 it is a list of samples; the text goes on with the first.
        """
        return reader.read(self._branch, self._entry(name))

    async def aget(self, name: str) -> Any:
        """The same for async programs: `await s.aget("x")`."""
        return await streaming.aread(self._branch, name)

    def __setitem__(self, name: str, value: object) -> None:
        """Sets a variable: a Python value, or a reference. Sends nothing."""
        self._branch.assign(name, value)

    def __contains__(self, name: object) -> bool:
        return name in self._branch.variables

    def values(self) -> dict[str, Any]:
        """All variables of this branch, read."""
        return {name: self[name] for name in list(self._branch.variables)}

    def ref(self, name: str, index: int | None = None) -> Reference:
        """The variable's text, to be appended before it is there: reads nothing, so that all stays one request.

        `index` picks one of a list that a join has gathered.

        >>> s += "Summary: " + s.ref("summary")
        """
        entry: Entry | None = self._entry(name)
        if index is not None:
            if not isinstance(entry, Gathered) or not -len(entry.entries) <= index < len(entry.entries):
                raise ProgramError(f"{name!r} has no element {index}", code="unknown_variable", place=caller())
            entry = entry.entries[index]
        if entry is None:
            raise ProgramError(f"branch {index} has no {name!r}", code="unknown_variable", place=caller())
        return Reference(name, entry, self._branch.session)

    def json(self, name: str) -> Any:
        """The variable's text, parsed as JSON: for values under a schema that was given as dict or text."""
        return reader.parse(self._branch, self._entry(name), msgspec.json.decode)

    def _entry(self, name: str) -> Entry:
        return reader.known(self._branch, name)

    # What is known about it

    def text(self) -> str:
        """The whole text of this branch, the chat template's included. Waits for all that is recorded."""
        return reader.text(self._branch)

    def messages(self) -> list[dict[str, str]]:
        """The chat so far, as role and content. Waits for all that is in it."""
        return reader.messages(self._branch)

    def get_meta_info(self, name: str) -> dict[str, Any]:
        """How a value came about: finish reason, tokens, seconds, log-probabilities if they were asked for."""
        return reader.meta_info(self._branch, self._entry(name))

    def probabilities(self, name: str) -> dict[str, float]:
        """The probability of each choice of a select.

        >>> s.probabilities("verdict")
        {'positive': 0.93, 'negative': 0.07}
        """
        return reader.probabilities(self._branch, name, self._entry(name))

    def text_iter(self, name: str | None = None) -> Iterator[str]:
        """The variable's text as it comes; without a name, all text of the branch but the chat template's."""
        return streaming.text_stream(self._branch, name)

    @overload
    def stream(self, what: str, *, partial: Literal[False] = ...) -> Stream[str]: ...
    @overload
    def stream(self, what: str, *, partial: bool) -> Stream[Any]: ...
    @overload
    def stream(self, what: type[Kind], *, name: str = ..., **options: Unpack[SamplingOptions]) -> Stream[Kind]: ...
    @overload
    def stream(self, what: object, *, name: str = ..., **options: Unpack[SamplingOptions]) -> Stream[Any]: ...
    def stream(
        self, what: object, *, partial: bool = False, name: str | None = None, **options: Unpack[SamplingOptions]
    ) -> Stream[Any]:
        """What comes of a variable, for `for` and `async for`: its text, or with `partial` its typed value.

        A typed value comes as often as more of it is complete, as an object on which only that is set, and last as a
        whole. `what` can be its type, too: then it is the latest value of that type, and in a program's body one is
        asked for here and now (as `name`, with `options`) unless there is one that was not streamed yet.

        >>> for delta in s.stream("story"):
        ...     print(delta, end="")
        >>> async for invoice in s.stream(Invoice, max_tokens=200):
        ...     show(invoice)
        """
        branch = self._branch
        if isinstance(what, str):
            if name is not None or options:
                raise TypeError("options are for a value that stream asks for itself: give its type, not a name")
            return streaming.value_stream(branch, what) if partial else streaming.text_stream(branch, what)
        if not branch.session.records_here:
            return streaming.kind_stream(branch, what)
        slot = streaming.slot_of(branch, what)
        if slot is None or slot.streamed or name is not None or options:
            grammar, convert, kind = typed(what)
            branch.append(Generate(name, clean_options(options), grammar, convert, None, caller(), kind))
            slot = streaming.slot_of(branch, what)
        assert slot is not None
        slot.streamed = True
        return streaming.slot_stream(branch, slot)

    def text_async_iter(self, name: str | None = None) -> AsyncIterator[str]:
        """`text_iter` for async programs and for tasks that watch one."""
        return streaming.text_stream(self._branch, name)

    def sync(self) -> None:
        """Sends what is recorded, and waits until all of it is done."""
        reader.sync(self._branch)
        self._branch.session.raise_error()

    async def asettle(self) -> None:
        """`sync` for async programs. After it, nothing that is read from here has to wait."""
        session = self._branch.session
        session.send()
        await session.await_until(lambda: session.quiet)
        session.raise_error()

    def error(self) -> BaseException | None:
        """What the program failed with, or None. Waits for the end, but not in the body itself."""
        session = self._branch.session
        if not session.records_here:
            reader.sync(self._branch)
        return session.error

    @property
    def usage(self) -> Usage:
        """Tokens of all requests that have ended."""
        return self._branch.session.usage

    def timeline(self) -> Timeline:
        """Where each token came from, and when. The program must have been run with `trace=True`."""
        session = self._branch.session
        if not session.settings.trace:
            raise ProgramError("there is no timeline: run the program with trace=True", code="not_traced")
        reader.sync(self._branch)
        return Timeline.of(session.ops, session.log, title=session.settings.title)


class Group:
    """The branches of a fork.

    >>> branches = s.fork(3)
    >>> branches += lambda i: f"Idea {i + 1}:" + gen("idea")
    >>> branches.join()
    >>> s["idea"]
    ['...', '...', '...']
    """

    def __init__(self, parent: State, states: Sequence[State]) -> None:
        self._parent = parent
        self._states = tuple(states)

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[State]:
        return iter(self._states)

    @overload
    def __getitem__(self, index: int) -> State: ...
    @overload
    def __getitem__(self, index: str) -> list[Any]: ...
    def __getitem__(self, index: int | str) -> State | list[Any]:
        """The branch at an index; or for a name, the variable's values in all branches."""
        if isinstance(index, int):
            return self._states[index]
        return [state[index] for state in self._states]

    def __setitem__(self, index: int, state: State) -> None:
        """Only so that `group[i] += ...` works: a branch cannot be replaced."""
        if self._states[index] is not state:
            raise ProgramError("a branch of a fork cannot be replaced", code="invalid_program", place=caller())

    def __iadd__(
        self, other: str | Expression | Sequence[str | Expression] | Callable[[int], str | Expression]
    ) -> Self:
        """Appends to each branch: the same, one of a list for each, or what a function gives for its index."""
        if isinstance(other, str | Expression):
            parts: Sequence[str | Expression] = [other] * len(self)
        elif callable(other):
            parts = [other(i) for i in range(len(self))]
        else:
            parts = other
        if len(parts) != len(self):
            raise ProgramError(
                f"{len(parts)} expressions cannot be appended to {len(self)} branches",
                code="invalid_program",
                place=caller(),
            )
        for state, part in zip(self._states, parts, strict=True):
            state += part
        return self

    def join(self, mode: str = "gather") -> None:
        """Ends the branches. The variables that they have set become lists of the parent, in their order.

        "append" also appends to the parent what each branch appended, in order.
        """
        if mode not in _JOIN_MODES:
            raise ProgramError(f'mode must be "gather" or "append", got {mode!r}', param="mode", place=caller())
        self._parent._branch.join([state._branch for state in self._states], _JOIN_MODES[mode])
