"""Generations that are retried until their value is valid: `gen(..., retries=n)`.

The attempts are made in a separate branch, where each is told what was wrong with the previous one. The original branch
continues with the valid answer alone. Text that follows there is held back until the answer is known, and everything
else waits for it; attempts of several branches run concurrently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ...runtime.protocol.program import Cancel, Delta, Fork, Gen, Join, RoleBegin, RoleEnd
from ...runtime.protocol.sampling_params import SamplingParams
from ..diagnostics.errors import ProgramError
from ..diagnostics.source_lines import Place, leading_to
from ..record.expression import Expression, Generate, RoleClose, RoleOpen
from ..record.options import merge_options
from ..record.recorder import OpNode, Recorder
from ..record.variables import Entry, Kept, Mark, Piece, Slot
from ..types.checks import reason_of
from .session import Session


class Asker(Protocol):
    """The branch that asks, as far as attempts are concerned."""

    id: int
    session: Session
    defaults: Mapping[str, Any]
    open_role: str | None
    attempts: Attempts | None

    @property
    def recorder(self) -> Recorder: ...

    @property
    def marks(self) -> list[Mark]: ...

    def sampling_of(self, item: Generate, here: Place) -> SamplingParams:
        """Returns the parameters of a generation."""
        ...

    def set_entry(self, name: str, entry: Entry) -> None:
        """Makes `entry` what the variable holds from here on."""

    def record_held(self, item: str | Expression, here: Place) -> None:
        """Records what had to wait for the value."""


class Held(NamedTuple):
    """Text, or the end or beginning of a message, that follows a value that is not known yet."""

    item: str | Expression
    place: Place


@dataclass(eq=False)
class Attempts:
    """Attempts at one value of `branch`.

    child    the branch that holds them
    slot     the value of the latest
    number   of that one, from 1
    held     text that follows in `branch`
    """

    branch: Asker
    item: Generate
    name: str
    child: int
    place: Place
    slot: Slot
    number: int = 1
    held: list[Held] = field(default_factory=list)

    @classmethod
    def begin(cls, branch: Asker, item: Generate) -> Attempts:
        """Records the first attempt.

        Raises:
            ProgramError: nobody could check it.
        """
        here = leading_to(item.place)
        recorder = branch.recorder
        branch.session.refuse_checks(here)
        if recorder.in_block:
            raise ProgramError(
                "retries cannot be used in a when or repeat_until: the check runs between two requests, and a block is "
                "part of one; use repeat_until with a condition instead",
                code="invalid_program",
                param="retries",
                place=here,
            )
        if branch.session.arrivals.may_restart(branch.id):
            raise ProgramError(
                "retries cannot be used in a branch of s.fork(retries=...): what is begun anew there would not be "
                "checked again; leave out one of the two",
                code="invalid_program",
                param="retries",
                place=here,
            )
        if merge_options(branch.defaults, item.options).n > 1:
            raise ProgramError(
                "retries apply to a single value: leave out n, or use s.fork_samples(expression, n)",
                code="invalid_program",
                param="retries",
                place=here,
            )
        (child,) = recorder.new_branches(1)
        recorder.add(OpNode(Fork(branch.id, (child,)), here))
        branch.session.arrivals.add_branches(branch.id, (child,))
        slot = _record(branch, item, item.name, child, here)
        found = cls(branch, item, slot.variable, child, here, slot)
        branch.session.body.attempts.append(found)
        branch.session.body.trials.add(child)
        return found

    @property
    def open(self) -> bool:
        """The answer is not known yet."""
        return self in self.branch.session.body.attempts

    def over(self) -> bool:
        """The latest value is there, or will never be."""
        return self.slot.settled or (self.branch.session.finished and self.slot.submission is None)

    def judge(self) -> None:
        """Takes the latest value if it is right, and otherwise asks again.

        Raises:
            ProgramError: it was the last attempt, code "invalid_output".
        """
        if not (self.open and self.over()):
            return
        if self.slot.value is None:  # reading it raises why
            self._end()
            return
        text = self.slot.value.text
        try:
            self.slot.convert(text)
        except ValueError as error:
            reason = reason_of(error)
            self.branch.session.tally.refused[self.child, self.slot.name] = reason
            if self.number <= (self.item.retries or 0):
                self._ask_again(reason)
                return
            self._give_up(text, reason, error)
            return
        self._accept()

    def _accept(self) -> None:
        """Appends the answer: what the child holds if it was the first, otherwise its text."""
        branch, recorder = self.branch, self.branch.recorder
        first = self.number == 1
        join = Join(branch.id, (self.child,), "append" if first else "gather")
        recorder.add(OpNode(join, self.place, adopted=self.slot))
        if not first:
            recorder.add_text(branch.id, (self.slot,), self.place)
        branch.marks.append(self.slot)
        value = self.slot.value
        if branch.session.settings.log and value is not None:
            answer = Delta(branch.id, self.name, value.text, value.logprobs or (), value.token_texts)
            branch.session.tally.log.append(answer)
        self._end()

    def _ask_again(self, reason: str) -> None:
        recorder, child, here = self.branch.recorder, self.child, self.place
        before = _before(self.branch)
        if self.branch.open_role == "assistant":
            recorder.add(OpNode(RoleEnd(child), here))
            recorder.add(OpNode(RoleBegin(child, "user"), here))
            recorder.add_text(child, (f"This answer is not right: {reason}\nAnswer again.",), here)
            recorder.add(OpNode(RoleEnd(child), here))
            recorder.add(OpNode(RoleBegin(child, "assistant"), here))
            recorder.add_text(child, before, here)
        else:
            recorder.add_text(child, (f"\nThis is not right: {reason}\nAgain:\n", *_last_line(before)), here)
        self.number += 1
        self.slot = _record(self.branch, self.item, self.name, child, here)

    def _give_up(self, text: str, reason: str, cause: Exception) -> None:
        branch = self.branch
        error = ProgramError(
            f"{self.name!r} was rejected in {self.number} attempts: {reason}; the last one was {text!r}",
            code="invalid_output",
            place=self.place,
            branch=branch.id,
        )
        error.__cause__ = cause
        self._end()
        with branch.session.changed:  # who reads it hears the same
            self.slot.failure, self.slot.values = error, []
        arrivals = branch.session.arrivals
        if (alone := arrivals.failing_alone(branch.id)) is None:
            raise error
        branch.recorder.add(OpNode(Cancel(alone), self.place))
        with branch.session.changed:
            arrivals.fail(alone, error)

    def _end(self) -> None:
        branch = self.branch
        branch.session.body.attempts.remove(self)
        branch.attempts = None
        branch.set_entry(self.name, self.slot)  # which holds an answer, or why there is none
        for item, here in self.held:
            branch.record_held(item, here)


def _record(branch: Asker, item: Generate, name: str | None, child: int, here: Place) -> Slot:
    """Records an attempt."""
    variable, sent = branch.recorder.name_for(child, name, "gen")
    slot = Slot(child, sent, item.convert, here, kind=item.kind, variable=variable)
    sampling = branch.sampling_of(item, here)
    branch.recorder.add(OpNode(Gen(child, sent, sampling, item.grammar, item.timeout_s), here, slot))
    return slot


def _before(branch: Asker) -> list[Piece]:
    """Returns the text that stands before the value: of its message, or outside of any since the last one."""
    found: list[Piece] = []
    for mark in reversed(branch.marks):
        if isinstance(mark, RoleOpen | RoleClose) or not isinstance(mark, str | Slot | Kept):
            break
        found.insert(0, mark)
    return found


def _last_line(pieces: list[Piece]) -> list[Piece]:
    """Returns what stands in the line in which the pieces end."""
    found: list[Piece] = []
    for piece in reversed(pieces):
        if isinstance(piece, str) and "\n" in piece:
            return [piece.rpartition("\n")[2], *found]
        found.insert(0, piece)
    return found
