"""Reads from a program: waits for values, and says what is known about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..runtime.program import Value
from .branch import Branch
from .entry import Entry, Fixed, Gathered, Passage
from .errors import ProgramError
from .expression import RoleClose, RoleOpen
from .place import caller
from .session import Session
from .stretch import Slot, Stretch


def read(branch: Branch, entry: Entry) -> Any:
    """The value of a variable, converted."""
    match entry:
        case Fixed(value=value):
            return value
        case Passage(marks=marks):
            return "".join(mark if isinstance(mark, str) else arrived(branch, mark).text for mark in marks)
        case Gathered(entries=entries):
            return [None if item is None else read(branch, item) for item in entries]
        case Slot():
            return parse(branch, entry, entry.convert)


def parse(branch: Branch, entry: Entry, convert: Callable[[str], Any]) -> Any:
    """A variable's text, converted; for several samples or joined branches, a list.

    Raises:
        ProgramError: a text is not what `convert` expects.
    """
    if isinstance(entry, Gathered):
        return [None if item is None else parse(branch, item, convert) for item in entry.entries]
    if not isinstance(entry, Slot):
        return convert(str(read(branch, entry)))
    value = arrived(branch, entry)
    if value.samples is None:
        return converted(entry, value, convert)
    return converted(entry, value, lambda _: [convert(text) for text in value.samples or ()])


def converted(slot: Slot, value: Value, convert: Callable[[str], Any]) -> Any:
    """A value's text, converted. Raises as `parse`."""
    try:
        return convert(value.text)
    except (ValueError, LookupError) as error:
        raise ProgramError(
            f"{slot.name!r} is not of the type asked for: {error}; its text is {value.text!r} "
            f"and it ended by {value.finish_reason!r}",
            code="invalid_output",
            place=slot.place,
            branch=slot.branch,
        ) from error


def arrived(branch: Branch, slot: Slot) -> Value:
    """Sends what is recorded if need be, and waits for a value.

    Raises:
        ProgramError: the program failed before it came.
    """
    session = branch.session
    if slot.value is None:
        if slot.stretch is None:
            session.send()
        session.wait(lambda: over(session, slot), lambda: slot.stretch)
    return value_of(session, slot)


def over(session: Session, slot: Slot) -> bool:
    """The value is there, or will never be: also because the body has ended without sending it."""
    return slot.settled or (session.finished and slot.stretch is None)


def value_of(session: Session, slot: Slot) -> Value:
    """The value of a slot that is over."""
    if slot.value is not None:
        return slot.value
    session.raise_error()
    raise ProgramError(
        f"the backend sent no value for {slot.name!r}", code="broken_stream", place=slot.place, branch=slot.branch
    )


def known(branch: Branch, name: str) -> Entry:
    """What a variable holds. If the body runs in another thread, waits until it has got there.

    Raises:
        ProgramError: there is no such variable.
    """
    session = branch.session
    if name not in branch.variables and not session.may_send:
        session.wait(lambda: name in branch.variables or session.body_ended, lambda: None)
    return entry_of(branch, name)


def entry_of(branch: Branch, name: str) -> Entry:
    """What a variable holds now."""
    entry = branch.variables.get(name)
    if entry is None:
        branch.session.raise_error()
        names = ", ".join(map(repr, branch.variables)) or "none"
        raise ProgramError(
            f"there is no variable {name!r} (there are: {names})", code="unknown_variable", place=caller()
        )
    return entry


def sync(branch: Branch) -> None:
    """Sends what is recorded, and waits until nothing is running, or the program has failed."""
    session = branch.session
    if not session.may_send:
        session.wait(lambda: session.finished, lambda: _running(session))
    session.send()
    session.wait_quiet()


def _running(session: Session) -> Stretch | None:
    return next((stretch for stretch in session.stretches if not stretch.ended), None)


def text(branch: Branch) -> str:
    """The whole text of a branch. Without roles it is known here, otherwise the engine says it."""
    if not any(isinstance(mark, RoleOpen) for mark in branch.transcript):
        return "".join(m if isinstance(m, str) else arrived(branch, m).text for m in _plain(branch))
    sync(branch)
    branch.session.raise_error()
    try:
        return branch.session.texts[branch.id]
    except KeyError:
        raise ProgramError(
            f"the backend did not send the text of branch {branch.id}", code="broken_stream", place=caller()
        ) from None


def _plain(branch: Branch) -> Iterator[str | Slot]:
    return (mark for mark in branch.transcript if isinstance(mark, str | Slot))


def messages(branch: Branch) -> list[dict[str, str]]:
    """The messages of a branch; text outside of any is left out."""
    found: list[dict[str, str]] = []
    inside = False
    for mark in branch.transcript:
        match mark:
            case RoleOpen(role=role):
                found.append({"role": role, "content": ""})
                inside = True
            case RoleClose():
                inside = False
            case str() | Slot():
                if inside:
                    found[-1]["content"] += mark if isinstance(mark, str) else arrived(branch, mark).text
    return found


def meta_info(branch: Branch, entry: Entry) -> dict[str, Any]:
    """What is known about how a value came about."""
    if isinstance(entry, Gathered):
        return {"branches": [None if item is None else meta_info(branch, item) for item in entry.entries]}
    if not isinstance(entry, Slot):
        return {}
    value = arrived(branch, entry)
    usage, timings = value.usage, value.timings
    info: dict[str, Any] = {
        "finish_reason": {"type": value.finish_reason, "matched": value.matched},
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "forced_tokens": usage.forced_tokens,
        "queue_s": timings.queue_s,
        "prefill_s": timings.prefill_s,
        "decode_s": timings.decode_s,
        "e2e_latency": timings.queue_s + timings.prefill_s + timings.decode_s,
    }
    if value.logprobs is not None:
        info["output_token_logprobs"] = [(item.logprob, item.token, None) for item in value.logprobs]
        info["output_top_logprobs"] = [[(p, token, None) for token, p in item.top] for item in value.logprobs]
    if entry.choices is not None:
        info["choices"] = list(entry.choices)
        info["scores"] = list(value.scores or ())
        info["probabilities"] = list(value.probabilities or ())
    return info


def probabilities(branch: Branch, name: str, entry: Entry) -> dict[str, float]:
    """The probability of each choice of a select."""
    if not isinstance(entry, Slot) or entry.choices is None:
        raise ProgramError(f"{name!r} was not chosen by a select", code="invalid_program", place=caller())
    value = arrived(branch, entry)
    if value.probabilities is None:
        raise ProgramError(f"the backend sent no probabilities for {name!r}", code="unsupported", place=entry.place)
    return dict(zip(entry.choices, value.probabilities, strict=True))
