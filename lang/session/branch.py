"""Branches of a program during recording, their variables, and references to them."""

from __future__ import annotations

import copy
import json
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ...runtime.protocol.program import CallTools, Fork, Gen, Join, JoinMode, Offer, RoleBegin, RoleEnd, Select
from ...runtime.protocol.sampling_params import SamplingParams
from ..diagnostics.errors import ProgramError, UnsupportedError
from ..diagnostics.source_lines import Place, leading_to, place
from ..record.condition import Condition, Operand
from ..record.expression import Choose, Control, Expression, Generate, Picture, RoleClose, RoleOpen, Series, items_of
from ..record.options import OF_BRANCHES, apart, merge_options, nearest, refuse_unknown
from ..record.reasoning import Reasoned
from ..record.recorder import AssignNode, OpNode, Recorder, UseNode
from ..record.variables import BLOCK, Block, Derived, Entry, Fixed, Gathered, Kept, Mark, Passage, Piece, Slot, marks_of
from ..tools.tool import Tool, Using
from ..types.annotations import as_json
from .attempts import Attempts, Held
from .session import Session


@dataclass(frozen=True, slots=True, eq=False)
class Reference(Expression, Operand):
    """The text of a variable, put in by the engine once it is there. Reads nothing. Compared, it makes a Condition."""

    name: str
    entry: Entry
    session: Session

    def __repr__(self) -> str:
        return f"<reference to {self.name!r}>"


@dataclass(frozen=True, slots=True, eq=False)
class Variable(Expression, Operand):
    """The same, looked up by its name where it is used."""

    name: str


class Branch:
    """One line of text and generations, and the variables in it.

    transcript    what was appended, but for the chat template's own text
    open_role     of the message that is open
    closed        why nothing more can be appended
    loops         those that are being recorded: what they carry from turn to turn
    isolated      if it fails, the others go on
    attempts      at the value that it has asked for last, if that is not known to be right yet
    """

    def __init__(self, session: Session, defaults: Mapping[str, Any], branch_id: int = 0) -> None:
        self.session = session
        self.defaults = defaults
        self.id = branch_id
        self.variables: dict[str, Entry] = {}
        self.transcript: list[Mark] = []
        self.open_role: str | None = None
        self.closed = ""
        self.cancelled = False
        self.isolated = False
        self.attempts: Attempts | None = None
        self.loops: list[dict[str, Kept]] = []
        self._set_here: set[str] = set()
        self._forked_at = 0
        self._in_block: list[Mark] | None = None
        self._forked: list[Branch] = []

    @property
    def recorder(self) -> Recorder:
        return self.session.recorder

    @property
    def marks(self) -> list[Mark]:
        """The transcript that is being written: the branch's, or that of a block."""
        return self.transcript if self._in_block is None else self._in_block

    def append(self, expression: object) -> None:
        """Records an expression.

        Raises:
            ProgramError: it cannot stand here.
        """
        self.check_open()
        self._append(expression)

    def settle(self, *others: Branch) -> None:
        """Waits until the values that it, and the others, have asked for are right."""
        if any(branch.attempts is not None for branch in (self, *others)) and self.session.records_here:
            self.session.settle()

    def record_held(self, item: str | Expression, here: Place) -> None:
        """Records what had to wait for a value, of the line `here`."""
        match item:
            case str():
                self._append_marks((str(item),), here)
            case RoleOpen(role=role):
                self._open(role, here)
            case RoleClose(role=role):
                self._close(role, here)

    def _append(self, item: object) -> None:
        if isinstance(item, Series):
            for part in item.items:
                self._append(part)
            return
        if self.attempts is not None and isinstance(item, str | RoleOpen | RoleClose):
            self.attempts.held.append(Held(item, place()))
            return
        self.settle()
        match item:
            case str() | RoleOpen() | RoleClose():
                self.record_held(item, place())
            case Reference(name=name) | Variable(name=name):
                self._append_marks(marks_of(name, self.entry_of(item)))
            case Generate(retries=int()):
                self.attempts = Attempts.begin(self, item)
            case Generate():
                self._generate(item)
            case Reasoned(generate=generate):
                slot = self._generate(generate)
                slot.convert = item.convert
                self.set_entry(slot.variable, Derived(slot, item.convert))
                self.set_entry(f"{slot.variable}_reasoning_content", Derived(slot, item.reasoning))
            case Choose():
                self._choose(item)
            case Using():
                self._use(item)
            case Control():
                item.record_in(self)
            case Picture():
                taken = ", ".join(sorted(self.session.backend.modalities))
                raise UnsupportedError(
                    f"{type(self.session.backend).__name__} takes {taken}, not images", param="image", place=place()
                )
            case _:
                raise ProgramError(
                    f"only text, expressions and references can be appended, got {_named(item)}",
                    code="invalid_program",
                    place=place(),
                )

    def _append_marks(self, marks: tuple[Piece, ...], here: Place | None = None) -> None:
        self.recorder.add_text(self.id, marks, here or place())
        self.marks.extend(marks)
        self.session.notify()

    def record_turn(self, item: Generate, offer: Offer, calls: str) -> None:
        """Records a turn of a model that has tools, and the calls that it may hold: these are the variable `calls`."""
        slot = self._generate(item, offer)
        if offer.choice == "none":
            return
        name, sent = self.recorder.name_for(self.id, calls, "calls")
        made = Slot(self.id, sent, str, slot.place, variable=name)
        op = CallTools(self.id, sent, slot.name, offer.tools)
        self.recorder.add(OpNode(op, slot.place, made))
        self._add_slot(made, appended=False)

    def _generate(self, item: Generate, offer: Offer | None = None) -> Slot:
        if item.check:
            self.session.refuse_checks(leading_to(item.place))
        name, sent = self.recorder.name_for(self.id, item.name, "gen")
        slot = Slot(self.id, sent, item.convert, leading_to(item.place), kind=item.kind, variable=name)
        sampling = self.sampling_of(item, slot.place)
        self.recorder.add(OpNode(Gen(self.id, sent, sampling, item.grammar, item.timeout_s, offer), slot.place, slot))
        if item.check:
            self.session.body.unread[slot] = self
        return self._add_slot(slot)

    def sampling_of(self, item: Generate, here: Place) -> SamplingParams:
        """Returns the parameters of a generation.

        Raises:
            ProgramError: no value of its type has room in `max_tokens`. Backends with the model's tokenizer tell here;
                servers refuse the program.
        """
        sampling = merge_options(self.defaults, item.options)
        tokenizer = getattr(self.session.backend, "tokenizer", None)
        if item.grammar is None or tokenizer is None:
            return sampling
        from ...runtime.programs.room import is_tight, refusal, too_small  # noqa: PLC0415  once a type is asked for

        tight = is_tight(item.grammar, sampling.max_tokens)
        if tight and (reason := too_small(item.grammar, sampling, tokenizer)) is not None:
            kind = getattr(item.kind, "__name__", None) or "its constraint"
            raise ProgramError(refusal(sampling, kind, reason), code="invalid_value", param="max_tokens", place=here)
        return sampling

    def _choose(self, item: Choose) -> None:
        name, sent = self.recorder.name_for(self.id, item.name, "select")
        slot = Slot(self.id, sent, str, leading_to(item.place), choices=item.choices, variable=name)
        self.recorder.add(OpNode(Select(self.id, sent, item.choices, item.method), slot.place, slot))
        self._add_slot(slot)

    def _use(self, item: Using) -> None:
        recorder = self.recorder
        arguments = tuple((key, self._argument(value)) for key, value in item.arguments.items())
        for key, value in item.arguments.items() if isinstance(item.tool, Tool) else ():
            if _is_constant(value) and self.session.reading.is_final(value):
                item.tool.check_argument(key, value)
        name, sent = recorder.name_for(self.id, item.name, "use")
        slot = Slot(self.id, sent, str, leading_to(item.place), variable=name)
        self.session.add_tool(item.tool)
        recorder.add(UseNode(slot, item.tool_name, arguments, item.append, item.timeout_s, slot.place))
        self._add_slot(slot, appended=item.append)

    def _argument(self, value: object) -> tuple[Piece, ...]:
        """A tool's argument: text as it is, with references in it; all else as JSON."""
        if isinstance(value, str):
            return (value,)
        if not _is_constant(value):
            items: Any = items_of(value) if isinstance(value, Expression) else value
            return tuple(mark for item in items for mark in self._argument_marks(item))
        try:
            plain = as_json(value)
            return (plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False),)
        except (TypeError, ValueError) as error:
            raise ProgramError(
                f"a tool's argument is a JSON value, text or a reference, got {type(value).__name__}: {error}",
                code="invalid_program",
                place=place(),
            ) from error

    def _argument_marks(self, item: object) -> tuple[Piece, ...]:
        match item:
            case str():
                return (item,)
            case Reference(name=name) | Variable(name=name):
                return marks_of(name, self.entry_of(item))
            case _:
                raise ProgramError(
                    f"a tool's argument can contain texts and references, not {type(item).__name__}",
                    code="invalid_program",
                    place=place(),
                )

    def _add_slot(self, slot: Slot, *, appended: bool = True) -> Slot:
        if appended:
            self.marks.append(slot)
        self.set_entry(slot.variable, slot)
        return slot

    def _open(self, role: str, here: Place) -> None:
        if self.open_role is not None:
            raise ProgramError(
                f"{_a(role)} message cannot begin inside {_a(self.open_role)} message: append one after the other, or "
                f"end that first, s += bough.{self.open_role}_end()",
                code="invalid_program",
                place=here,
            )
        self.recorder.add(OpNode(RoleBegin(self.id, role), here))
        self.open_role = role
        self.marks.append(RoleOpen(role))

    def _close(self, role: str, here: Place) -> None:
        if self.open_role != role:
            there = f"{_a(self.open_role)} message is" if self.open_role else "no message is"
            raise ProgramError(f"{_a(role)} message cannot end here: {there} open", code="invalid_program", place=here)
        self.recorder.add(OpNode(RoleEnd(self.id), here))
        self.open_role = None
        self.marks.append(RoleClose(role))

    # Variables

    def assign(self, name: str, value: object) -> None:
        """Sets a variable. Allowed after the end, too: those who read the state may keep things in it."""
        if not self.session.finished:
            self.check_open()
        if not isinstance(name, str):
            raise ProgramError(_no_name(name), code="invalid_program", place=place())
        match value:
            case Reference() | Variable():
                self.set_entry(name, self._as_it_is(name, self.entry_of(value)))
            case Expression():
                raise ProgramError(
                    f"a variable cannot be {type(value).__name__}, which has no value before it is appended: append "
                    f"it, s += ..., with the name {name!r}",
                    code="invalid_program",
                    place=place(),
                )
            case _:
                self.set_entry(name, Fixed(value))

    def _as_it_is(self, name: str, entry: Entry) -> Entry:
        """Keeps what `entry` is here and now, if a loop that is being recorded changes it later."""
        marks = entry.marks if isinstance(entry, Passage) else (entry,)
        if not any(isinstance(mark, Kept) and mark.carried for mark in marks):
            return entry
        kept = Kept(self.id, name, sources=[entry])
        self.recorder.add(AssignNode(kept, entry, place()))
        return kept

    def entry_of(self, reference: Reference | Variable) -> Entry:
        """Returns what a reference is to, or what a variable holds here and now."""
        if isinstance(reference, Variable):
            return self.look_up(reference.name)
        if reference.session is self.session:
            return reference.entry
        raise ProgramError(
            f"{reference.name!r} belongs to another program: read it there, and append its value",
            code="invalid_program",
            place=place(),
        )

    def look_up(self, name: str, advice: str = "") -> Entry:
        """Returns what a variable holds here and now. `advice` is for those who ask for one that is not there.

        Raises:
            ProgramError: there is no such variable.
        """
        entry = self.variables.get(name)
        if entry is not None:
            return entry
        self.session.raise_error()
        raise ProgramError(self._unknown(name, advice), code="unknown_variable", place=place())

    def _unknown(self, name: object, advice: str) -> str:
        """Words that there is no such variable, which there are, and what may have been meant."""
        if not isinstance(name, str):
            return _no_name(name)
        names = ", ".join(map(repr, self.variables)) or "none"
        where = f" in branch {self.id}" if self.id else ""
        message = f"there is no variable {name!r}{where} (there are: {names})"
        if any(name in child.variables for child in self._forked):
            return f"{message}: a forked branch has it, so join that first"
        if nearest(name, self.variables):
            return message + nearest(name, self.variables)
        if self.session.body.ended and not self.transcript and not self.variables:
            return f"{message}: nothing was appended to this state, as with `s += bough.gen({name!r})`"
        if not self.variables and not advice:
            return f"{message}: no generation was appended, as with `s += bough.gen({name!r})`"
        return message + advice

    def keep_passage(self, name: str, start: int) -> None:
        """Makes what was appended since `marks` had `start` elements a variable."""
        self.settle()
        marks = self.marks[start:]
        if any(isinstance(mark, Block) for mark in marks):
            raise ProgramError(
                f"the variable {name!r} cannot be made of text with a when or repeat_until in it", place=place()
            )
        passage = Passage(tuple(mark for mark in marks if isinstance(mark, str | Slot | Kept)))
        self.set_entry(name, self._as_it_is(name, passage))

    def set_entry(self, name: str, entry: Entry) -> None:
        """Makes `entry` what the variable holds from here on."""
        with self.session.changed:
            self.variables[name] = entry
            self._set_here.add(name)
            self.session.notify()

    def recorded_since(self, before: Mapping[str, Entry]) -> Branch:
        """The same branch, to be read only: with the variables that were set since they were `before`."""
        self.settle()
        view = copy.copy(self)
        view.variables = {name: entry for name, entry in self.variables.items() if before.get(name) is not entry}
        view.transcript, view._in_block = list(self.marks), None
        view.closed = view.closed or "it was appended to another state, which continues"
        return view

    # Blocks

    @contextmanager
    def inside_block(self, variables: dict[str, Entry]) -> Iterator[None]:
        """Records into a block, which begins with these variables. Afterwards all is as before."""
        outer = self.variables, self._in_block, self.open_role
        self.variables, self._in_block = dict(variables), [BLOCK]
        try:
            yield
        finally:
            self.variables, self._in_block, self.open_role = outer

    def carried(self, name: str) -> Kept | None:
        """Returns what the innermost loop that is being recorded carries as `name` from turn to turn."""
        kept: Kept | None = None
        for loop in self.loops:
            kept = loop.setdefault(name, Kept(self.id, name, carried=True, before=kept))
        return kept

    def end_block(self, variables: dict[str, Entry]) -> None:
        """A block has been recorded, after which these are the variables."""
        with self.session.changed:
            self.variables = variables
            self.marks.append(BLOCK)
            self.session.notify()

    # Forks

    def fork(self, count: int, *, isolated: bool = False, retries: int = 0) -> list[Branch]:
        """Forks `count` branches that go on from here."""
        self.settle()
        self.check_open()
        refuse_unknown("count", count)
        if type(count) is not int or count < 1:
            raise ProgramError(
                f"fork takes the number of branches, at least 1; got {count!r}",
                code="invalid_program",
                place=place(),
            )
        if type(retries) is not int or retries < 0 or (retries and not isolated):
            wrong = type(retries) is not int or retries < 0
            reason = (
                f"at least 0, got {retries!r}"
                if wrong
                else "given with isolated=True: only then can a branch fail alone"
            )
            raise ProgramError(f"retries must be {reason}", code="invalid_program", param="retries", place=place())
        recorder = self.recorder
        ids = recorder.new_branches(count)
        recorder.add(OpNode(Fork(self.id, ids, isolated, retries), place()))
        self.session.arrivals.add_branches(self.id, ids, isolated=isolated, restart=retries > 0)
        children = []
        for branch_id in ids:
            child = Branch(self.session, apart(self.defaults, OF_BRANCHES, branch_id), branch_id)
            child.variables = dict(self.variables)
            child.transcript, child._forked_at = list(self.marks), len(self.marks)
            child.open_role = self.open_role
            child.isolated = isolated
            children.append(child)
        self._forked += children
        return children

    def join(self, children: Sequence[Branch], mode: JoinMode, *, errors_as_values: bool = False) -> None:
        """Ends forked branches. What they have set becomes lists here, in their order."""
        self.settle(*children)
        self.check_open()
        for child in children:
            if not child.cancelled:
                child.check_open()
            if mode == "append" and child.open_role != self.open_role:
                raise ProgramError(
                    f"branch {child.id} cannot be appended: a message is open in only one of the two branches",
                    code="invalid_program",
                    place=place(),
                )
        changed = [child._changed() for child in children]
        gathered = {
            name: Gathered(tuple(entries.get(name) for entries in changed), errors_as_values)
            for name in dict.fromkeys(name for entries in changed for name in entries)
        }
        join = Join(self.id, tuple(child.id for child in children), mode)
        self.recorder.add(OpNode(join, place(), gathered=gathered))
        for name, entry in gathered.items():
            self.set_entry(name, entry)
        for child in children:
            child.closed = "it has been joined"
            if mode == "append":
                may_fail = child.isolated or child.cancelled
                self.marks.extend([BLOCK] if may_fail else child.transcript[child._forked_at :])

    def end(self) -> None:
        """The block of code that this branch was made for has ended."""
        self.closed = self.closed or "its block has ended"

    def _changed(self) -> dict[str, Entry]:
        return {name: entry for name, entry in self.variables.items() if name in self._set_here}

    def check_open(self) -> None:
        """Raises if nothing can be appended any more."""
        self.session.raise_error()
        if self.session.records_elsewhere:
            raise ProgramError(
                "only the thread that runs the program's body can append to its states: append there, to all branches "
                "of a fork, which are generated side by side without threads",
                code="invalid_program",
                place=place(),
            )
        continued = "the program has ended: continue it with another one, f.after(state).run(...)"
        reason = continued if self.session.body.ended else self.closed
        if reason:
            raise ProgramError(f"nothing can be appended to this state: {reason}", code="ended", place=place())


def _no_name(name: object) -> str:
    return f"a variable's name is text, got {name!r} ({type(name).__name__})"


def _a(role: str) -> str:
    return f"an {role}" if role.startswith("a") else f"a {role}"


def _is_constant(value: object) -> bool:
    """Tells whether it is neither a reference nor a text with references in it."""
    if isinstance(value, list | tuple):
        return not any(isinstance(item, Expression) for item in value)
    return not isinstance(value, Expression)


def _named(value: object) -> str:
    """Names what was to be appended, and what may have been meant."""
    kind = type(value).__name__
    if isinstance(value, Coroutine):
        value.close()
        return "a coroutine that was not awaited: await it, or in a plain function read with s[name]"
    if value is None:
        return f"{kind}: a function that appends by itself is called without `s +=`"
    if isinstance(value, int | float):
        return f"{kind}: write str({value!r})"
    if isinstance(value, list | tuple):
        return f"{kind}: append its parts one by one"
    if isinstance(value, Condition):
        return f"{kind}, a condition: bough.when(condition, then, otherwise) decides by it"
    if isinstance(value, Tool):
        return f"{kind}: a tool is called with bough.use(name, tool, argument=...)"
    if isinstance(value, dict):
        if value.get("role") in ("system", "user", "assistant"):
            return f"{kind}: a message is bough.{value['role']}(text)"
        return f"{kind}: write json.dumps(...) of it"
    return f"{kind}: call it, s += {getattr(value, '__name__', 'f')}(...)" if callable(value) else kind
