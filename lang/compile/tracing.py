"""Traces a program: runs its body once with placeholders for unknown values, and keeps the recorded instructions."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, get_origin

import msgspec

from ...constrain.spec import JsonSchema
from ...runtime.protocol.condition import Condition, Operand, Ref
from ...runtime.protocol.program import Assign, Op, Program, ProgramEvent, Repeat, When, walk
from ...runtime.templates.rewrite import Parts, joined, rewrite, with_operands
from ...runtime.tools.registry import ToolCall
from ..backend import TEXT_ONLY
from ..diagnostics.source_lines import Place, caller, raised
from ..record.condition import UndecidedError
from ..record.variables import Derived, Entry, Gathered, Kept, Passage, Slot, Submission
from ..session.body import Scope, current
from ..session.branch import Branch
from ..session.session import Session, Settings, Wait
from ..state.state import State
from ..state.values import RunReading
from ..types.schema import bare_options
from .placeholder import CompileError, Marks, Placeholder, Probabilities, Unknown, clean, has_marks


@dataclass(frozen=True)
class Trace:
    """The recording of a body. `variables` are those of its root branch; `places` are in
    the order of `walk`."""

    ops: tuple[Op, ...]
    returned: object
    variables: Mapping[str, Entry]
    places: tuple[Place, ...]
    tools: Mapping[str, ToolCall]


def trace(
    title: str, body: Callable[..., Any], arguments: Mapping[str, Any], defaults: Mapping[str, Any], marks: Marks
) -> Trace:
    """Runs `body` on a state that only records.

    Raises:
        CompileError: it looks at what is not known yet. What it raises itself passes through.
    """
    session = _TracingSession(Settings(title=title), marks)
    state: State[Any] = State(Branch(session, defaults))
    returned = _run(session, state, body, arguments)
    if returned is None or isinstance(returned, State):
        _refer_all((state if returned is None else returned)._branch.variables.values())
    recorded, places, _ = session.recorder.take()
    ops = _resolved(recorded, places, marks)
    _check_marks(ops, places)
    return Trace(ops, returned, dict(state._branch.variables), places, dict(session.outbox.tools))


def _refer_all(entries: Iterable[Entry | None]) -> None:
    """Marks what blocks may have set as referred to: it is a result, so that the engine has to know it."""
    for entry in entries:
        if isinstance(entry, Kept) and entry.has_text:
            entry.referred = True
        elif isinstance(entry, Gathered):
            _refer_all(entry.entries)


def _resolved(ops: Iterable[Op], places: Sequence[Place], marks: Marks) -> tuple[Op, ...]:
    """The instructions without marks. Raises CompileError with the line of one that cannot have what is in it."""
    found: list[Op] = []
    index = 0
    for op in ops:
        try:
            found += rewrite([op], _Resolving(marks))
        except CompileError as error:
            error.place = error.place or places[index]
            raise
        index += len(list(walk([op])))
    return tuple(found)


def trace_start(
    title: str, body: Callable[..., Any], arguments: Mapping[str, Any], defaults: Mapping[str, Any], marks: Marks
) -> tuple[Op, ...]:
    """Returns what `body` records before it looks at what is not known yet. What it raises itself passes through."""
    session = _TracingSession(Settings(title=title), marks)
    with contextlib.suppress(CompileError):
        _run(session, State(Branch(session, defaults)), body, arguments)
    recorded, _, _ = session.recorder.take()
    return rewrite(recorded, _Resolving(marks))


def _run(session: _TracingSession, state: State[Any], body: Callable[..., Any], arguments: Mapping[str, Any]) -> object:
    """Runs `body`, and returns its result."""
    session.own()
    token = current.set(Scope(session, state, on_loop=False, outer=current.get()))
    try:
        returned = body(state, **arguments)
        return _finished(returned) if inspect.iscoroutine(returned) else returned
    except CompileError:
        raise
    except UndecidedError as error:
        raise CompileError(_UNDECIDED, place=error.place) from error
    except Exception as error:
        what = _about_a_placeholder(error)
        if what is None:
            raise
        raise CompileError(what, place=raised(error)) from error
    finally:
        current.reset(token)


_UNDECIDED = (
    "whether this holds is not known when the program is compiled: use bough.when or bough.repeat_until, or pass the "
    "arguments that it depends on to compile()"
)


def _about_a_placeholder(error: Exception) -> str | None:
    """Words an error of code that has looked at a placeholder; None: it is about something else."""
    try:
        said = str(error)
    except CompileError as refused:  # it would show one
        return refused.message
    if Placeholder.__name__ in said or has_marks(said.encode(errors="ignore")):
        said = said.replace(Placeholder.__name__, "a value that is not known when the program is compiled")
        return f"{clean(said)}: pass the argument that this depends on to compile()"
    return None


def telling(ops: Iterable[Op], wanted: Collection[Ref]) -> tuple[Op, ...]:
    """The same instructions, where those that assign a wanted value also send it."""
    return tuple(_telling(op, wanted) for op in ops)


def _telling(op: Op, wanted: Collection[Ref]) -> Op:
    match op:
        case Assign(branch=branch, name=name):
            return msgspec.structs.replace(op, tell=Ref(branch, name) in wanted)
        case When(then=then, otherwise=otherwise):
            return msgspec.structs.replace(op, then=telling(then, wanted), otherwise=telling(otherwise, wanted))
        case Repeat(body=body):
            return msgspec.structs.replace(op, body=telling(body, wanted))
        case _:
            return op


def _finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise CompileError("the body waits for something other than its own values")


def _check_marks(ops: Iterable[Op], places: Iterable[Place]) -> None:
    for op, place in zip(walk(ops), places, strict=True):
        if has_marks(msgspec.json.encode(op, enc_hook=str)):
            raise CompileError(
                "a value that is not known yet can be used in text, in a tool's arguments and in conditions, but not "
                "in options, choices or constraints, nor inside JSON: pass the argument to compile()",
                place=place,
            )


class _Resolving:
    """Replaces the marks in instructions by what they stand for."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    def parts(self, parts: Parts) -> Parts:
        found = (self._marks.parts(part) if isinstance(part, str) else (part,) for part in parts)
        return joined(part for some in found for part in some)

    argument = parts

    def condition(self, condition: Condition) -> Condition:
        return with_operands(condition, self._operand)

    def _operand(self, operand: Operand) -> Operand:
        return self._marks.operand(operand) if isinstance(operand, str) else operand


class _PlaceholderReading(RunReading):
    """Reads placeholders, and waits for nothing."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    def value(self, branch: Branch, entry: Entry, convert: Callable[[str], Any] | None) -> Any:
        return self._text(entry, None if convert is None else Any)

    def of_kind(self, branch: Branch, name: str, value: Any, kind: Any) -> Any:
        entry = branch.variables.get(name)
        if isinstance(entry, Slot | Kept | Derived):
            return self._text(entry, kind)
        return super().of_kind(branch, name, value, kind)

    def text(self, branch: Branch, entry: Slot | Kept) -> str:
        return str(self._text(entry))

    def waits(self, branch: Branch, entry: Entry) -> Iterator[Wait]:
        return iter(())

    def probabilities(self, branch: Branch, name: str, entry: Entry) -> Any:
        if not isinstance(entry, Slot) or entry.choices is None:
            raise CompileError("only the probabilities of a select can be read", place=caller())
        return Probabilities(entry, self._marks)

    def is_final(self, value: object) -> bool:
        return not isinstance(value, str)  # it may hold placeholders

    def _text(self, entry: Entry, kind: object = None) -> str:
        match entry:
            case Slot():
                return self._marks.placeholder(Unknown(entry, kind, _is_written(entry, kind)))
            case Derived():
                return self._marks.placeholder(Unknown(entry, kind, writable=False))
            case Kept(variable=name) if entry.has_text:
                entry.referred = True
                writable = all(_is_written(slot, kind) for slot in entry.slots)
                return self._marks.placeholder(Unknown(entry, kind, writable))
            case Kept(variable=name):
                raise CompileError(f"{name!r} may be a list made in a block, which cannot be read", place=caller())
            case Passage(marks=marks) if kind is None:
                return "".join(mark if isinstance(mark, str) else self._text(mark) for mark in marks)
            case _:
                _refuse("taking a value apart")


class _TracingSession(Session):
    """Records, and sends nothing."""

    def __init__(self, settings: Settings, marks: Marks) -> None:
        super().__init__(_Compiler(), _Never(), settings, _PlaceholderReading(marks))

    def cancel(self, branch: int) -> None:
        _refuse("cancelling a branch")

    def send(self) -> None:
        """Sends nothing; the driver reports that."""

    def refuse_checks(self, here: Place) -> None:
        raise CompileError(
            "retries= and check= need Python, but a compiled program is data: leave them out, or repeat with "
            "bough.repeat_until",
            place=here,
        )

    async def await_until(self, done: Callable[[], bool]) -> None:
        _refuse("waiting for a value")


def _is_written(slot: Slot, kind: object) -> bool:
    """Its text is what `str` gives of its value."""
    kind = slot.kind if kind is None else kind
    if kind in (None, int, bool) or isinstance(kind, Mapping | JsonSchema) or type(kind) is str:
        return True
    if kind is str:  # written in quotes, unless a pattern says how
        return slot.convert is str
    return get_origin(kind) is Literal and bare_options(kind) is not None


class _Compiler:
    """A backend that is never asked."""

    modalities = TEXT_ONLY

    def run(self, program: Program, tools: Mapping[str, ToolCall] | None = None) -> Iterator[ProgramEvent]:
        _refuse("running")

    def arun(self, program: Program, tools: Mapping[str, ToolCall] | None = None) -> AsyncIterator[ProgramEvent]:
        _refuse("running")

    def drop(self, program_id: str) -> None:
        """There is nothing."""

    def flush_cache(self) -> bool:
        return True

    def close(self) -> None:
        """There is nothing."""


class _Never:
    """A driver that is never asked."""

    def start(self, session: Session, submission: Submission) -> None:
        _refuse("running")

    def wait(self, session: Session, done: Callable[[], bool], submission: Callable[[], Submission | None]) -> None:
        _refuse("waiting for a value")

    def stop(self, session: Session) -> None:
        """Nothing runs."""


def _refuse(what: str) -> NoReturn:
    raise CompileError(
        f"{what} is not possible while the program is compiled: use bough.when and bough.repeat_until for what the "
        "engine can decide",
        place=caller(),
    )
