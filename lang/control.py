"""Control flow decided by the engine: `when` and `repeat_until`, their conditions, and the recording of their blocks:
the value of a variable after a `when`, and from turn to turn of a `repeat_until`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any

from ..runtime.protocol.errors import RequestError
from .diagnostics.errors import ProgramError
from .diagnostics.source_lines import Place, caller, located, place
from .function import Function
from .record.condition import Comparison, Condition, CountOf, Operand, TimesOf
from .record.expression import Control, Expression, Generate, RoleClose, RoleOpen
from .record.options import refuse_unknown
from .record.recorder import AssignNode, EntryOf, Node, RepeatNode, TimesMade, WhenNode
from .record.variables import Entry, Fixed, Kept, Passage, Slot, elements_of, marks_of, refer
from .session.branch import Branch, Reference, Variable
from .state.state import State
from .tools.offered import Offered, ToolChoice, calls_name

Variables = dict[str, Entry]
Record = Callable[[Branch], None]
"""Records into a branch what a block holds."""

_ORDERED = ("lt", "le", "gt", "ge")

MAX_TURNS = 10_000

Body = str | Expression | State[Any] | Callable[[State[Any]], object]
"""Content of a block: text, an expression, or a function that records into it."""


def when(condition: Condition, then: Body, otherwise: Body | None = None) -> Expression:
    """Runs `then` if the condition holds, else `otherwise`. The engine decides: the program stays one request.

    Each block is text, an expression, or a function that is called once, while the program is recorded, with the state
    that records into the block. If such a function records nothing and returns text or an expression, that is appended.
    A variable that is set only in the block that did not run is None.

    >>> s += bough.when(s.ref("language") == "de", "Antworte auf Deutsch.", "Answer in English.")
    >>> s += bough.when(bough.var("answer").contains("?"), lambda s: ask_again(s))
    """
    _check(condition)
    return WhenBlock(condition, _recording(then, "then"), _recording(otherwise, "otherwise"))


@located
def repeat_until(condition: Condition, body: Body, at_most: int = 8) -> Expression:
    """Runs `body` until the condition holds after it, `at_most` times in all. The program stays one request.

    The body is recorded once. If it refers to a variable before setting it, it sees the value of the previous turn.
    Afterwards `s[name]` is the last value, and `s.history(name)` lists those of all turns.

    >>> s += bough.repeat_until(bough.var("action") == "finish", step, at_most=6)

    Raises:
        RequestError: `at_most` is out of range.
    """
    _check(condition)
    refuse_unknown("at_most", at_most)
    if not isinstance(at_most, int) or isinstance(at_most, bool) or not 1 <= at_most <= MAX_TURNS:
        raise RequestError(f"at_most must be 1 to {MAX_TURNS}, got {at_most!r}", param="at_most")
    return RepeatBlock(_recording(body, "body"), condition, at_most)


def var(name: str) -> Variable:
    """A variable, looked up where it is used: in a loop's condition, the value that its body sets. It can be compared
    in conditions, and appended like `s.ref(name)`.

    >>> bough.repeat_until((bough.var("score") >= 8) | (bough.times("score") == 3), improve)
    """
    return Variable(name)


def times(name: str) -> Operand:
    """Number of times that the generation called `name` has run."""
    return TimesOf(name)


def count(*conditions: Condition) -> Operand:
    """Number of the conditions that hold.

    >>> bough.when(bough.count(*(s.ref("vote", i) == "yes" for i in range(5))) >= 3, "Accepted.")
    """
    for condition in conditions:
        _check(condition)
    return CountOf(conditions)


def _check(condition: object) -> None:
    if not isinstance(condition, Condition):
        raise ProgramError(
            f"this needs a condition, such as s.ref('x') == 'yes' or bough.times('x') >= 3; got "
            f"{type(condition).__name__}",
            code="invalid_program",
            place=caller(),
        )


def _recording(body: Body | None, name: str) -> Record:
    """Returns a function that records what a block holds."""
    if body is None:
        return _nothing
    if isinstance(body, str | Expression):
        return lambda branch: branch.append(body)
    if isinstance(body, State):
        return lambda branch: _append(branch, body)
    if not callable(body):
        raise ProgramError(
            f"{name} must be text, an expression, or a function that takes the state; got {type(body).__name__}",
            code="invalid_program",
            place=caller(),
        )

    def record(branch: Branch) -> None:
        result = body(State(branch))
        if inspect.iscoroutine(result):
            result.close()
            raise ProgramError(
                f"{name} is a coroutine function: a block is recorded by plain functions, which have nothing to wait "
                "for",
                code="invalid_program",
                place=caller(),
            )
        if not branch.recorder.block_is_empty or isinstance(body, Function):  # what it returns is for its caller
            return
        if isinstance(result, str | Expression):
            branch.append(result)
        elif isinstance(result, State) and type(result) is not State:
            _append(branch, result)

    return record


def _append(branch: Branch, called: State[Any]) -> None:
    state = State[Any](branch)
    state += called


@dataclass(eq=False, slots=True)
class _Recorded:
    """A block: its instructions, and the branch's variables at its end."""

    nodes: list[Node]
    variables: Variables


@dataclass(frozen=True, slots=True, eq=False)
class WhenBlock(Control):
    """One of two blocks.

    A variable that they set differently holds either value afterwards; if only one of them sets it, and it had no value
    before, it may be None.
    """

    condition: Condition
    then: Record
    otherwise: Record

    def record_in(self, branch: Branch) -> None:
        here = place()
        before = dict(branch.variables)
        asked = _bound(self.condition, branch, here, {})
        blocks = [_record(branch, record, before, here) for record in (self.then, self.otherwise)]
        after: Variables = {}
        for name in dict.fromkeys((*before, *blocks[0].variables, *blocks[1].variables)):
            first, second = (block.variables.get(name) or branch.carried(name) for block in blocks)
            if first is second and first is not None:
                after[name] = first
            else:
                after[name] = _either(branch.id, name, first, second, blocks, here)
        branch.recorder.add(WhenNode(branch.id, asked, blocks[0].nodes, blocks[1].nodes, here))
        branch.end_block(after)


@dataclass(frozen=True, slots=True, eq=False)
class RepeatBlock(Control):
    """A block that is executed until the condition holds after it.

    If it refers to a variable before setting it, it sees the value of the previous turn.
    """

    body: Record
    until: Condition
    at_most: int

    def record_in(self, branch: Branch) -> None:
        here = place()
        before = dict(branch.variables)
        carried = {name: Kept(branch.id, name, carried=True, before=entry) for name, entry in before.items()}
        asked: list[Condition] = []

        def turn(inner: Branch) -> None:
            self.body(inner)
            asked.append(_bound(self.until, inner, here, carried))

        branch.loops.append(carried)
        try:
            recorded = _record(branch, turn, dict(carried), here)
        finally:
            branch.loops.pop()
        after: Variables = {}
        for name, entry in recorded.variables.items():
            unchanged = entry is carried.get(name)
            after[name] = before[name] if unchanged and name in before else entry
        for name, kept in carried.items():
            entry = recorded.variables.get(name, kept)
            if entry is kept:
                kept.unchanged = True
                if kept.referred:
                    refer(kept.before)
                continue
            recorded.nodes.append(_assigned(kept, entry, here))
            branch.recorder.add(AssignNode(kept, kept.before, here))
            if kept.looked_at:
                raise ProgramError(
                    f"{name!r} was read in a loop that sets it: it would be the same in every turn; use "
                    f"s.ref({name!r})",
                    code="invalid_program",
                    place=here,
                )
            if kept.referred and not kept.has_text:
                raise ProgramError(
                    f"{name!r} is referred to in a loop that makes it a list of several branches' values",
                    code="invalid_program",
                    place=here,
                )
        branch.recorder.add(RepeatNode(branch.id, recorded.nodes, asked[0], self.at_most, here))
        branch.end_block(after)


@dataclass(frozen=True, slots=True, eq=False)
class ToolTurns(Control):
    """A generation that may call tools: turns of the model, each followed by the calls that it holds, until one holds
    none. `whole_message`: outside of messages it is one."""

    generate: Generate
    offered: Offered
    whole_message: bool = False

    @property
    def name(self) -> str | None:
        return self.generate.name

    def record_in(self, branch: Branch) -> None:
        if self.whole_message and branch.open_role is None:
            for item in (RoleOpen("assistant"), replace(self, whole_message=False), RoleClose("assistant")):
                branch.append(item)
            return
        if branch.open_role != "assistant":
            where = "outside of messages" if branch.open_role is None else f"in a {branch.open_role} message"
            raise ProgramError(
                f"tools are called in an assistant message, not {where}: s += bough.call_tools({self.name!r}, [...])",
                code="invalid_program",
                param="tools",
                place=self.generate.place,
            )
        for tool in self.offered.tools.values():
            branch.session.add_tool(tool)
        calls = calls_name(self.name)
        self._record(branch, calls)
        branch.variables.pop(calls, None)  # s.calls(name) reads it

    def _record(self, branch: Branch, calls: str) -> None:
        offered, more = self.offered, Variable(calls) != "[]"

        def turn(inner: Branch, choice: ToolChoice = "auto") -> None:
            inner.record_turn(self.generate, offered.of(choice), calls)

        def turns(inner: Branch, at_most: int) -> None:
            RepeatBlock(turn, Variable(calls) == "[]", at_most).record_in(inner)

        last = partial(turn, choice="none")
        if offered.choice == "none" or offered.max_turns == 1:
            last(branch)
            return
        if offered.choice == "auto":
            turns(branch, offered.max_turns - 1)
        else:
            turn(branch, offered.choice)
            if offered.max_turns > 2:
                WhenBlock(more, partial(turns, at_most=offered.max_turns - 2), _nothing).record_in(branch)
        WhenBlock(more, last, _nothing).record_in(branch)


def _nothing(branch: Branch) -> None:
    """Records nothing."""


def _either(
    branch: int, name: str, first: Entry | None, second: Entry | None, blocks: Sequence[_Recorded], here: Place
) -> Kept:
    """Keeps what is one thing after the first block and another after the second; of lists, so are their elements."""
    kept = Kept(branch, name)
    for block, entry in zip(blocks, (first, second), strict=True):
        block.nodes.append(_assigned(kept, entry, here))
    for one, other in zip_longest(elements_of(first), elements_of(second)):
        kept.elements.append(_either(branch, name, one, other, blocks, here))
    return kept


def _record(branch: Branch, record: Record, variables: Variables, here: Place) -> _Recorded:
    """Records a block. If that fails, the branch is as it was before."""
    recorder, role = branch.recorder, branch.open_role
    with recorder.block(branch.id, here) as recording, branch.inside_block(variables):
        record(branch)
        if branch.open_role != role:
            there = f"in a {role} message" if role else "outside of any message"
            raise ProgramError(
                f"a when or repeat_until that begins {there} must end there, too: close inside it what it opens",
                code="invalid_program",
                place=here,
            )
        return _Recorded(recording.nodes, branch.variables)


def _assigned(kept: Kept, entry: Entry | None, here: Place) -> AssignNode:
    kept.sources.append(entry)
    return AssignNode(kept, entry, here)


def _bound(condition: Condition, branch: Branch, here: Place, carried: Mapping[str, Kept]) -> Condition:
    """The condition, with what its operands refer to now.

    carried   of a loop at whose end it stands: a reference that was made before the loop means what the loop has set
    """

    def exchange(operand: Operand) -> Operand:
        match operand:
            case Reference(name=name):
                entry = branch.entry_of(operand)
                kept = carried.get(name)
                if kept is not None and kept.before is entry:
                    entry = branch.variables[name]
                return _operand(branch, name, entry, here)
            case Variable(name=name):
                return _operand(branch, name, branch.look_up(name), here)
            case TimesOf(name=name):
                return TimesMade(_only_slot(branch, name, here))
            case CountOf(of=of):
                return CountOf(tuple(_checked(inner.over(exchange), here) for inner in of))
            case _:
                return operand

    return _checked(condition.over(exchange), here)


def _operand(branch: Branch, name: str, entry: Entry, here: Place) -> EntryOf:
    marks = marks_of(name, entry)  # raises if it is no text
    if isinstance(entry, Passage) and len(marks) != 1:
        kept = Kept(branch.id, name, referred=True)
        branch.recorder.add(_assigned(kept, entry, here))
        return EntryOf(kept)
    return EntryOf(entry)


def _only_slot(branch: Branch, name: str, here: Place) -> Slot:
    entry = branch.look_up(name)
    slots = entry.slots if isinstance(entry, Kept) else (entry,)
    if len(slots) != 1 or not isinstance(slots[0], Slot):
        reason = "is generated in several places" if len(slots) > 1 else "is not generated"
        raise ProgramError(f"times() cannot count {name!r}: it {reason}", code="invalid_program", place=here)
    return slots[0]


def _checked(condition: Condition, here: Place) -> Condition:
    """Refuses what would be compared in a way that nobody means."""
    match condition:
        case Comparison(left=EntryOf(entry=left), relation=relation, right=EntryOf(entry=right)):
            if relation in _ORDERED and _is_number(left) and _is_number(right):
                raise ProgramError(
                    "two generated numbers can only be compared for equality, as texts: compare each with a number",
                    code="invalid_program",
                    place=here,
                )
        case _:
            pass
    return condition


def _is_number(entry: Entry | None) -> bool:
    """Tells whether it may be a number that only the engine knows, which it knows as text."""
    match entry:
        case Slot(kind=kind):
            return kind is int or kind is float
        case Kept():
            values = [source.value for source in entry.sources if isinstance(source, Fixed)]
            return any(map(_is_number, entry.slots)) or any(type(value) in (int, float) for value in values)
        case _:
            return False
