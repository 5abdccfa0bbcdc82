"""What each instruction of a program does to its branch, as generators that wait by yielding."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Literal, Protocol

from ....runtime.programs.validate import Block, Item
from ....runtime.protocol.condition import Condition, Hole, Ref, Times
from ....runtime.protocol.decide import NotYetError, holds
from ....runtime.protocol.errors import BoughError, RequestError
from ....runtime.protocol.program import (
    Assign,
    Cancel,
    Fork,
    Gen,
    Join,
    Op,
    Part,
    Piece,
    Repeat,
    RoleBegin,
    RoleEnd,
    Select,
    Skipped,
    Text,
    Use,
    Value,
    When,
)
from ....runtime.protocol.request import PREFILLED, SAMPLED
from .state import Answer, Branch, Call, Run, Step, Waits
from .surplus import after, match, take
from .transcript import Begin, End, Mark, text_of, words


class Process(Protocol):
    """The program that an instruction belongs to."""

    def find(self, ref: Ref, asking: Branch) -> str | None:
        """A value; None while it is still to come. Raises BoughError if it never will."""

    def times(self, times: Times, asking: Branch) -> int | None:
        """How many values there are; None while there may be more."""

    def call(self, branch: Branch, step: Step, arguments: dict[str, str], ahead: tuple[Op, ...]) -> Call: ...

    def fork(self, branch: Branch, op: Fork) -> None: ...

    def enter(self, block: Block, step: Step) -> list[Step]:
        """Begins a block: gives other branches their part of it, and returns that of the step's own."""

    def pass_over(self, block: Block, run: Run) -> None:
        """A block will not be entered."""

    def begin_loop(self, branch: Branch, item: Item) -> None: ...

    def end_loop(self, branch: Branch, item: Item) -> None: ...

    def keep(self, branch: Branch, run: Run, answer: Answer) -> None:
        """A value has been made."""

    def say(self, run: Run, piece: Piece) -> None: ...

    def now(self) -> float:
        """Seconds since the program began."""
        ...


class CancelledError(BoughError):
    """An instruction has cancelled its own branch."""

    code = "cancelled"


def carry_out(process: Process, branch: Branch, step: Step) -> Waits:
    """One instruction, and those in its blocks."""
    branch.step = step
    match step.op:
        case Text(parts=parts):
            _append(process, branch, step, (yield from _text(process, branch, parts)))
        case Assign(name=name, parts=parts, tell=tell):
            text = branch.values[name] = yield from _text(process, branch, parts)
            branch.made[name] += 1
            if tell:
                step.run.listener(Value(branch=branch.id, name=name, text=text) if parts else Skipped(branch.id, name))
        case RoleBegin() | RoleEnd():
            _append(process, branch, step, _turn(branch, step.op))
        case Fork():
            process.fork(branch, step.op)
        case Join():
            yield from _join(branch, step, step.op)
        case When():
            yield from _when(process, branch, step, step.op)
        case Repeat():
            yield from _repeat(process, branch, step, step.op)
        case Cancel():
            raise CancelledError(f"branch {branch.id} was cancelled")
        case Gen() | Select() | Use():
            yield from _ask(process, branch, step, step.op)
    branch.step = step
    branch.num_ops += 1


def _turn(branch: Branch, op: RoleBegin | RoleEnd) -> Mark:
    """The mark that opens or closes a message."""
    role = branch.role
    if isinstance(op, RoleEnd):
        if role is None:
            raise RequestError("there is no open message to close", param="role")
        return End(role)
    if role is not None:
        raise RequestError(f"a {op.role} message cannot be opened inside a {role} message", param="role")
    return Begin(op.role)


def _join(branch: Branch, step: Step, op: Join) -> Waits:
    barriers = [step.barriers[step.item.index, child] for child in op.children]
    while not all(barrier.passed for barrier in barriers):
        yield None
    for barrier in barriers if op.mode == "append" else ():
        if not barrier.failed and barrier.child is not None:
            branch.adopt(barrier.child, barrier)


def _ask(process: Process, branch: Branch, step: Step, op: Gen | Select | Use) -> Waits:
    """A value that others make."""
    arguments: dict[str, str] = {}
    if isinstance(op, Use):
        for name, parts in op.arguments:
            arguments[name] = yield from _text(process, branch, parts)
    answer = take(branch.surplus, op) if branch.surplus is not None else None
    start_s = process.now()
    if answer is None:
        ahead = after(branch.queue, op.branch) if step.run.program.spec_tokens and step is branch.top else ()
        answer = yield process.call(branch, step, arguments, ahead)
        assert answer is not None
    text = answer.value.text
    branch.values[op.name] = text
    branch.made[op.name] += 1
    process.keep(branch, step.run, answer)
    if isinstance(op, Use) and step.run.program.trace:
        stop_s = process.now()
        tool = Piece(branch=branch.id, op=branch.num_ops, kind="tool", name=op.name, start_s=start_s, stop_s=stop_s)
        process.say(step.run, tool)
    branch.surplus = None
    if not isinstance(op, Use) or op.append:
        _append(process, branch, step, text, start_s if isinstance(op, Gen | Select) else None)
    if isinstance(op, Gen):
        branch.surplus = answer.surplus


def _when(process: Process, branch: Branch, step: Step, op: When) -> Waits:
    then, otherwise = step.item.blocks
    holds = yield from _holds(process, step.run, branch, op.condition)
    process.pass_over(otherwise if holds else then, step.run)
    yield from _block(process, branch, step, then if holds else otherwise)


def _repeat(process: Process, branch: Branch, step: Step, op: Repeat) -> Waits:
    process.begin_loop(branch, step.item)
    for turn in range(op.at_most):
        if turn:
            branch.step = step
            if (yield from _holds(process, step.run, branch, op.until)):
                break
        yield from _block(process, branch, step, step.item.blocks[0])
    process.end_loop(branch, step.item)


def _block(process: Process, branch: Branch, step: Step, block: Block) -> Waits:
    for inner in process.enter(block, step):
        yield from carry_out(process, branch, inner)


class _Values:
    """What a condition in `branch` may ask for."""

    def __init__(self, process: Process, run: Run, branch: Branch) -> None:
        self._process = process
        self._run = run
        self._branch = branch

    def text(self, ref: Ref) -> str:
        found = self._process.find(ref, self._branch)
        if found is None:
            raise NotYetError
        return found

    def times(self, name: Times) -> int:
        found = self._process.times(name, self._branch)
        if found is None:
            raise NotYetError
        return found

    def matches(self, pattern: str, text: str) -> bool:
        return self._run.patterns.get(pattern).matches(text)


def _holds(process: Process, run: Run, branch: Branch, condition: Condition) -> Generator[None, Answer, bool]:
    """Whether a condition holds, once the values that decide are there."""
    while True:
        try:
            return holds(condition, _Values(process, run, branch))
        except NotYetError:
            yield None


def _value(process: Process, branch: Branch, ref: Ref) -> Generator[None, Answer, str]:
    while (value := process.find(ref, branch)) is None:
        yield None
    return value


def _text(process: Process, branch: Branch, parts: Iterable[Part]) -> Generator[None, Answer, str]:
    """The text of `parts`, once all values in it are there."""
    texts: list[str] = []
    for part in parts:
        if isinstance(part, Hole):
            raise RequestError(f"the template's argument {part.name!r} was not given", param="ops")
        texts.append(part if isinstance(part, str) else (yield from _value(process, branch, part)))
    return "".join(texts)


def _append(process: Process, branch: Branch, step: Step, mark: Mark, start_s: float | None = None) -> None:
    """Appends to a branch. `start_s`: when the call began that has made it."""
    if branch.surplus is not None:
        branch.surplus = match(branch.surplus, mark)
    if mark == "":
        return
    branch.marks.append(mark)
    if not step.run.program.trace:
        return
    generated = isinstance(step.op, Gen | Select)
    chunks = tuple(words(text_of(mark)))
    process.say(
        step.run,
        Piece(
            branch=branch.id,
            op=branch.num_ops,
            kind=_kind(step.op),
            name=step.op.name if isinstance(step.op, Gen | Select) else "",
            role="" if isinstance(mark, str) else mark.role,
            texts=chunks,
            origins=(SAMPLED if generated else PREFILLED,) * len(chunks),
            start_s=start_s or 0.0,
            stop_s=0.0 if start_s is None else process.now(),
        ),
    )


def _kind(op: Op) -> Literal["text", "role", "gen", "select"]:
    match op:
        case Gen():
            return "gen"
        case Select():
            return "select"
        case RoleBegin() | RoleEnd():
            return "role"
    return "text"
