"""Reads from a program: waits for values, and reports what is known about them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from ...runtime.protocol.errors import BoughError
from ...runtime.protocol.program import Value
from ..diagnostics.errors import ProgramError
from ..diagnostics.source_lines import caller
from ..record.variables import Derived, Entry, Fixed, Gathered, Kept, Passage, Slot
from ..session.branch import Branch
from ..session.replay import Joined, Line, Outcome, Turn, text_of
from ..session.session import Session, Wait
from ..tools.offered import ToolCall, call_of, calls_name, read_made
from ..types.annotations import described
from ..types.checks import refusal_of
from ..types.schema import typed
from ..types.texts import from_text
from .meta_info import info_so_far
from .meta_info import meta_info as describe


class RunReading:
    """Reading of a program that runs: waits for what is not there yet."""

    def value(self, branch: Branch, entry: Entry, convert: Callable[[str], Any] | None) -> Any:
        return _from(branch, _settled(branch, entry), convert)

    def of_kind(self, branch: Branch, name: str, value: Any, kind: Any) -> Any:
        try:
            return read_as(value, kind)
        except (ValueError, TypeError) as error:
            raise _not_of(name, value, kind, str(error)) from error

    def text(self, branch: Branch, entry: Slot | Kept) -> str:
        return text_of(_settled(branch, entry))

    def waits(self, branch: Branch, entry: Entry) -> Iterator[Wait]:
        return waits(branch, entry)

    def probabilities(self, branch: Branch, name: str, entry: Entry) -> dict[str, float]:
        turn = _turn(branch, entry)
        if turn is None or turn.slot.choices is None:
            raise ProgramError(f"{name!r} was not chosen by a select", code="invalid_program", place=caller())
        slot, value = turn
        if value.probabilities is None:
            raise ProgramError(f"the backend sent no probabilities for {name!r}", code="unsupported", place=slot.place)
        return dict(zip(turn.slot.choices, value.probabilities, strict=True))

    def is_final(self, value: object) -> bool:
        return True


def _settled(branch: Branch, entry: Entry) -> Outcome:
    """Waits for a variable, and returns what it has come to hold."""
    for wait in waits(branch, entry):
        branch.session.wait(*wait)
    return outcome(branch, entry)


def read(branch: Branch, entry: Entry, convert: Callable[[str], Any] | None = None) -> Any:
    """Waits for a variable, and returns its text, converted by `convert` or as its generation says; for several samples
    or joined branches, a list. None for a value that a block might have made, and did not.

    Raises:
        ProgramError: a text is not what `convert` expects.
    """
    if isinstance(entry, Gathered):
        return [None if item is None else _gathered(branch, entry, item, convert) for item in entry.entries]
    if isinstance(entry, Fixed):
        return entry.value if convert is None else convert(str(entry.value))
    return branch.session.reading.value(branch, entry, convert)


def as_kind(branch: Branch, name: str, value: Any, kind: Any) -> Any:
    """A value that was read as one of the type `kind`: it is one, or a text that says one.

    Raises:
        ProgramError: it is neither.
    """
    slot = branch.variables.get(name)
    if isinstance(slot, Slot) and slot.kind == kind:
        return value
    return branch.session.reading.of_kind(branch, name, value, kind)


def read_as(value: Any, kind: Any) -> Any:
    """The value as one of the type `kind`. Raises ValueError or TypeError."""
    return _of_text(value, kind) if isinstance(value, str) else _of_value(value, kind)


def _of_text(text: str, kind: Any) -> Any:
    """The value that a text says: as it is generated for that type, or bare, as in `2020-01-31`."""
    try:
        return typed(kind).convert(text)
    except msgspec.DecodeError:
        if text.lstrip()[:1] in ("{", "[", '"'):
            raise
    return described(kind).convert(text.strip())


def _of_value(value: Any, kind: Any) -> Any:
    """The value of the type `kind` that JSON, as a dict, is."""
    if isinstance(value, list):  # of samples or branches, each of which may be a text
        return msgspec.convert(value, kind, strict=False, dec_hook=from_text)
    return described(kind).convert(value)


def _not_of(name: str, value: Any, kind: Any, why: str) -> ProgramError:
    what = getattr(kind, "__name__", kind)
    return ProgramError(f"{name!r} is no {what}: {why}; it is {value!r}", code="invalid_output", place=caller())


def _gathered(branch: Branch, gathered: Gathered, item: Entry, convert: Callable[[str], Any] | None) -> Any:
    try:
        return read(branch, item, convert)
    except ProgramError as error:
        slots = _slots_of(item)
        if gathered.errors_as_values and any(branch.session.arrivals.failure_of(s.branch) is error for s in slots):
            return error
        raise


def _from(branch: Branch, found: Outcome, convert: Callable[[str], Any] | None) -> Any:
    """The value that a variable has come to hold."""
    match found:
        case None:
            return None
        case str():
            return found if convert is None else convert(found)
        case Turn(slot=slot, value=value):
            return converted(branch.session, slot, value, convert or slot.convert)
        case Derived(slot=slot, convert=own):
            return None if slot.value is None else converted(branch.session, slot, slot.value, convert or own)
        case _:
            return read(branch, found, convert)


def converted(session: Session, slot: Slot, value: Value, convert: Callable[[str], Any]) -> Any:
    """A value's text, converted; with several samples, the list of them. Raises as `read`."""
    if convert is slot.convert:
        session.body.unread.pop(slot, None)
    try:
        return convert(value.text) if value.samples is None else [convert(text) for text in value.samples]
    except ValueError as error:
        raise ProgramError(
            f"{refusal_of(slot.variable, error)}; its text is {value.text!r} and it ended by {value.finish_reason!r}",
            code="invalid_output",
            place=slot.place,
            branch=slot.branch,
        ) from error


def check_unread(session: Session) -> None:
    """Asks the checks about the values that have not been read. Those of branches that fail alone are left to readers.

    Raises:
        ProgramError: one is refused, code "invalid_output".
    """
    for slot, branch in list(session.body.unread.items()):
        if session.arrivals.failing_alone(slot.branch) is not None or session.arrivals.failure_of(slot.branch):
            continue
        value = _left(branch, slot) if slot.in_block else slot.value
        if value is not None:
            converted(session, slot, value, slot.convert)


def _left(branch: Branch, slot: Slot) -> Value | None:
    """Returns the value of a slot in a block, if a variable of the branch holds it in the end."""
    entry = branch.variables.get(slot.variable)
    match None if entry is None else outcome(branch, entry):
        case Turn(slot=found, value=value) if found is slot:
            return value
        case Derived(slot=found) if found is slot:
            return slot.value
        case _:
            return None


def history(branch: Branch, name: str, *, known: bool = False) -> list[Any]:
    """All values of the generations called `name` that this branch has made, in order. `known`: there may be none."""
    session = branch.session
    branch.settle()
    session.refuse_in_block(repr(name))
    session.send()
    for wait in () if session.ended_early else until_through(branch):
        session.wait(*wait)
    made = [one for one in line_of(branch).made if one.variable == name]
    if not made and not known and name not in branch.variables:
        branch.look_up(name)  # raises
    return [_made(branch, one) for one in made]


def calls(branch: Branch, name: str) -> list[ToolCall]:
    """The calls that the model has made in the turns of the generation called `name`."""
    branch.look_up(name)
    turns = history(branch, calls_name(name), known=True)
    tools = branch.session.outbox.tools
    return [call_of(made, tools) for turn in turns for made in read_made(turn)]


def _made(branch: Branch, made: Turn | Joined) -> Any:
    if isinstance(made, Turn):
        return converted(branch.session, made.slot, made.value, made.slot.convert)
    return [_of_branch(branch, made, entry, found) for entry, found in zip(made.entries, made.found, strict=True)]


def _of_branch(branch: Branch, joined: Joined, entry: Entry | None, found: Outcome | Joined) -> Any:
    """Returns what a branch has brought to a join."""
    match entry, found:
        case _, Joined():
            return _made(branch, found)
        case (Derived(convert=convert), Turn(slot=slot, value=value)):
            return converted(branch.session, slot, value, convert)
        case (Slot() as slot, None) | (Derived(slot=slot), None):
            failure = slot.failure or branch.session.arrivals.failure_of(slot.branch)
            if joined.errors_as_values and failure is not None:
                return failure
            raise_missing(branch.session, slot)
        case _:
            return _from(branch, found, None)


def values(branch: Branch) -> dict[str, Any]:
    """All variables, read. Of a program that has failed, those that had come."""
    branch.settle()
    found: dict[str, Any] = {}
    for name, entry in list(branch.variables.items()):
        try:
            found[name] = read(branch, entry)
        except ProgramError:
            if not branch.session.ended_early:
                raise
    return found


# Waiting


def waits(branch: Branch, entry: Entry) -> Iterator[Wait]:
    """Yields what has to be waited for until `outcome` knows what `entry` holds. Sends what is recorded.

    Raises:
        ProgramError: a block is being recorded; or the program has failed, and the value will not come.
    """
    session = branch.session
    match entry:
        case Fixed():
            return
        case Gathered(entries=entries):
            for item in (item for item in entries if item is not None):
                with contextlib.suppress(*([ProgramError] if entry.errors_as_values else [])):  # `read` says it
                    yield from waits(branch, item)
        case Passage(marks=marks):
            for mark in marks:
                yield from () if isinstance(mark, str) else waits(branch, mark)
        case Derived(slot=slot):
            yield from waits(branch, slot)
        case Kept() if session.recorder.in_block and isinstance(entry.before, Fixed):
            entry.looked_at = True  # it may be no value of the engine's at all: then it can be read
        case Slot() | Kept():
            session.refuse_in_block(repr(entry.variable))
            if isinstance(entry, Kept) or entry.submission is None:
                session.send()
            yield from _until_known(session, entry)


def outcome(branch: Branch, entry: Entry) -> Outcome:
    """Returns what `entry` holds, once nothing has to be waited for."""
    match entry:
        case Slot(in_block=False):
            return Turn(entry, value_of(branch.session, entry))
        case Kept() if branch.session.recorder.in_block and isinstance(entry.before, Fixed):
            return entry.before
        case Passage(marks=marks):
            texts = (mark if isinstance(mark, str) else text_of(outcome(branch, mark)) for mark in marks)
            return "".join(texts)
        case _:
            with branch.session.changed:
                return branch.session.arrivals.replay().outcome(entry)


def _until_known(session: Session, entry: Slot | Kept) -> Iterator[Wait]:
    """Until it is there; of what blocks may set, until they are through."""
    if isinstance(entry, Slot) and not entry.in_block:
        if entry.value is None:
            yield Wait(lambda: over(session, entry), entry)
        value_of(session, entry)
        return
    while True:
        with session.changed:
            replay = session.arrivals.replay()
            if replay.knows(entry.branch, entry):
                return
            slot = replay.lines[entry.branch].waits_for
        assert slot is not None
        yield from _for_more(session, slot)


def until_through(branch: Branch) -> Iterator[Wait]:
    """Until the branch has done all that was recorded for it."""
    while (slot := line_of(branch).waits_for) is not None:
        yield from _for_more(branch.session, slot)


def _for_more(session: Session, slot: Slot) -> Iterator[Wait]:
    num_values, attempt = len(slot.values), slot.attempt
    yield Wait(
        lambda: len(slot.values) > num_values or slot.attempt > attempt or over(session, slot, whole=True),
        slot,
    )
    if len(slot.values) <= num_values and slot.attempt == attempt:
        raise_missing(session, slot)


def line_of(branch: Branch) -> Line:
    """Returns how far a branch has come."""
    with branch.session.changed:
        return branch.session.arrivals.replay().lines.get(branch.id) or Line()


def over(session: Session, slot: Slot, *, whole: bool = False) -> bool:
    """The value is there, or will never be: also because the body has ended without sending it. `whole`: no more values
    of a loop will come, either."""
    done = slot.complete if whole else slot.settled
    return done or (session.finished and slot.submission is None)


def value_of(session: Session, slot: Slot) -> Value:
    """The latest value of a slot that is over."""
    if slot.value is None:
        raise_missing(session, slot)
    assert slot.value is not None
    return slot.value


def raise_missing(session: Session, slot: Slot) -> None:
    """Raises why a value has not come."""
    failure = slot.failure or session.arrivals.failure_of(slot.branch)
    if failure is not None:
        raise failure
    session.raise_error()
    raise ProgramError(
        f"the backend sent no value for {slot.name!r}", code="broken_stream", place=slot.place, branch=slot.branch
    )


def known(branch: Branch, name: str) -> Entry:
    """Returns what a variable holds. If the body runs in another thread, waits until it has got there.

    Raises:
        ProgramError: there is no such variable.
    """
    session = branch.session
    branch.settle()
    if name not in branch.variables and not session.may_send:
        session.wait(lambda: name in branch.variables or session.body.ended)
    return branch.look_up(name)


def sync(branch: Branch) -> None:
    """Sends what is recorded, and waits until nothing is running, or the program has failed."""
    session = branch.session
    session.refuse_in_block()
    if session.records_here:
        session.settle()
    if not session.may_send:
        session.wait_finished()
    session.send()
    session.wait_quiet()


def shown(branch: Branch, name: str) -> str:
    """A variable for people who look on: its value if it is there, and else what is known. Waits for nothing."""
    entry = branch.variables[name]
    session = branch.session
    if session.finished or isinstance(entry, Fixed):
        try:
            return repr(read(branch, entry))
        except BoughError as error:
            return f"{type(error).__name__}: {error.code}"
    if isinstance(entry, Slot) and entry.value is not None:
        return repr(entry.value.text)
    return "not there yet"


# What is known about values


def meta_info_so_far(branch: Branch, entry: Entry) -> dict[str, Any]:
    """Returns what is known of a value while its text comes. Waits for nothing."""
    session = branch.session
    with session.changed:
        logprobs, texts = session.arrivals.logprobs_of(entry) if isinstance(entry, Slot) else ((), {})
    return info_so_far(session.id, logprobs, texts)


def meta_info(branch: Branch, entry: Entry) -> dict[str, Any]:
    """Returns what is known about how a value came about."""
    if isinstance(entry, Gathered):
        return {"branches": [None if item is None else meta_info(branch, item) for item in entry.entries]}
    turn = _turn(branch, entry)
    if turn is None:
        return {}
    slot, value = turn
    return describe(branch.session.id, value, slot.choices)


def _turn(branch: Branch, entry: Entry) -> Turn | None:
    """The value of a variable that was generated."""
    if isinstance(entry, Derived):
        entry = entry.slot
    if not isinstance(entry, Slot | Kept):
        return None
    found = _settled(branch, entry)
    return found if isinstance(found, Turn) else None


def _slots_of(entry: Entry) -> tuple[Slot, ...]:
    match entry:
        case Slot():
            return (entry,)
        case Derived(slot=slot):
            return (slot,)
        case Kept():
            return entry.slots
        case Passage(marks=marks):
            return tuple(slot for mark in marks if not isinstance(mark, str) for slot in _slots_of(mark))
        case Gathered(entries=entries):
            return tuple(slot for item in entries if item is not None for slot in _slots_of(item))
        case Fixed():
            return ()
