"""A branch of a program while it is recorded: appends instructions, and knows what its variables hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..runtime.program import Fork, Gen, Join, JoinMode, RoleBegin, RoleEnd, Select
from .entry import Entry, Fixed, Gathered, Mark, Passage, marks_of, parts_of
from .errors import ProgramError, UnsupportedError
from .expression import Choose, Expression, Generate, Picture, RoleClose, RoleOpen, items_of
from .options import merge_options
from .place import caller
from .session import Session
from .stretch import Slot


@dataclass(frozen=True, slots=True, eq=False)
class Reference(Expression):
    """The text of a variable, put in by the engine once it is there. Reads nothing."""

    name: str
    entry: Entry
    session: Session


class Branch:
    """One line of text and generations, and the variables in it.

    transcript    what was appended, but for the chat template's own text
    open_role     of the message that is open
    closed        why nothing more can be appended
    """

    def __init__(self, session: Session, defaults: Mapping[str, Any], branch_id: int = 0) -> None:
        self.session = session
        self.defaults = defaults
        self.id = branch_id
        self.variables: dict[str, Entry] = {}
        self.transcript: list[Mark] = []
        self.open_role: str | None = None
        self.closed = ""
        self._inherited: Mapping[str, Entry] = {}
        self._forked_at = 0

    def append(self, expression: object) -> None:
        """Records an expression.

        Raises:
            ProgramError: it cannot stand here.
        """
        self.check_open()
        if not isinstance(expression, str | Expression):
            raise ProgramError(
                f"only text, expressions and references can be appended, got {type(expression).__name__}",
                code="invalid_program",
                place=caller(),
            )
        for item in items_of(expression):
            self._append(item)

    def _append(self, item: str | Expression) -> None:
        match item:
            case str():
                self._append_marks((item,))
            case Reference():
                self._append_marks(self._marks_of(item))
            case Generate():
                self._generate(item)
            case Choose():
                self._choose(item)
            case RoleOpen(role=role):
                self._open(role)
            case RoleClose(role=role):
                self._close(role)
            case Picture():
                taken = ", ".join(sorted(self.session.backend.modalities))
                raise UnsupportedError(
                    f"{type(self.session.backend).__name__} takes {taken}, not images", param="image", place=caller()
                )

    def _append_marks(self, marks: tuple[str | Slot, ...]) -> None:
        self.transcript += marks
        self.session.recorder.add_text(self.id, parts_of(marks), caller())
        self.session.notify()

    def _marks_of(self, reference: Reference) -> tuple[str | Slot, ...]:
        marks = marks_of(reference.name, reference.entry)
        if reference.session is self.session:
            return marks
        raise ProgramError(
            f"{reference.name!r} belongs to another program: read it there, and append what it holds",
            code="invalid_program",
            place=caller(),
        )

    def _generate(self, item: Generate) -> None:
        name, sent = self.session.recorder.name_for(self.id, item.name, "gen")
        slot = Slot(self.id, sent, item.convert, item.place, kind=item.kind)
        sampling = merge_options(self.defaults, item.options)
        self._add_slot(name, slot, Gen(self.id, sent, sampling, item.grammar, item.timeout_s))

    def _choose(self, item: Choose) -> None:
        name, sent = self.session.recorder.name_for(self.id, item.name, "select")
        slot = Slot(self.id, sent, str, item.place, choices=item.choices)
        self._add_slot(name, slot, Select(self.id, sent, item.choices, item.method))

    def _add_slot(self, name: str, slot: Slot, op: Gen | Select) -> None:
        self.session.recorder.add_slot(op, slot)
        self.transcript.append(slot)
        self._set(name, slot)

    def _open(self, role: str) -> None:
        if self.open_role is not None:
            raise ProgramError(
                f"a {role} message cannot begin inside a {self.open_role} message",
                code="invalid_program",
                place=caller(),
            )
        self.open_role = role
        self.transcript.append(RoleOpen(role))
        self.session.recorder.add(RoleBegin(self.id, role), caller())

    def _close(self, role: str) -> None:
        if self.open_role != role:
            there = f"a {self.open_role} message is" if self.open_role else "no message is"
            raise ProgramError(
                f"a {role} message cannot end here: {there} open", code="invalid_program", place=caller()
            )
        self.open_role = None
        self.transcript.append(RoleClose(role))
        self.session.recorder.add(RoleEnd(self.id), caller())

    # Variables

    def assign(self, name: str, value: object) -> None:
        self.check_open()
        self._set(name, value.entry if isinstance(value, Reference) else Fixed(value))

    def keep_passage(self, name: str, start: int) -> None:
        """Makes what was appended since the transcript had `start` elements a variable."""
        marks = tuple(mark for mark in self.transcript[start:] if isinstance(mark, str | Slot))
        self._set(name, Passage(marks))

    def _set(self, name: str, entry: Entry) -> None:
        with self.session.changed:
            self.variables[name] = entry
            self.session.notify()

    # Forks

    def fork(self, count: int) -> list[Branch]:
        """So many branches that go on from here."""
        self.check_open()
        if count < 1:
            raise ProgramError(f"a fork needs at least one branch, got {count}", code="invalid_program", place=caller())
        recorder = self.session.recorder
        ids = recorder.new_branches(count)
        recorder.add(Fork(self.id, ids), caller())
        children = []
        for branch_id in ids:
            child = Branch(self.session, self.defaults, branch_id)
            child.variables, child._inherited = dict(self.variables), dict(self.variables)
            child.transcript, child._forked_at = list(self.transcript), len(self.transcript)
            child.open_role = self.open_role
            children.append(child)
        return children

    def join(self, children: Sequence[Branch], mode: JoinMode) -> None:
        """Ends forked branches. What they have set becomes lists here, in their order."""
        self.check_open()
        for child in children:
            child.check_open()
            if mode == "append" and child.open_role != self.open_role:
                raise ProgramError(
                    f"branch {child.id} cannot be appended: a message is open in one of the two branches only",
                    code="invalid_program",
                    place=caller(),
                )
        self.session.recorder.add(Join(self.id, tuple(child.id for child in children), mode), caller())
        changed = [child._changed() for child in children]
        for name in dict.fromkeys(name for entries in changed for name in entries):
            self._set(name, Gathered(tuple(entries.get(name) for entries in changed)))
        for child in children:
            child.closed = "it has been joined"
            if mode == "append":
                self.transcript += child.transcript[child._forked_at :]

    def _changed(self) -> dict[str, Entry]:
        return {name: entry for name, entry in self.variables.items() if self._inherited.get(name) is not entry}

    def check_open(self) -> None:
        """Raises if nothing can be appended any more."""
        self.session.raise_error()
        reason = "the program has ended" if self.session.body_ended else self.closed
        if reason:
            raise ProgramError(f"nothing can be appended to this state: {reason}", code="ended", place=caller())
