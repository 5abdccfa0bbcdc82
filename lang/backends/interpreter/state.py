"""What the interpreter knows of a program that runs: its stretches, its branches, and what each has still to do."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field

from ....runtime.programs.validate import Item
from ....runtime.protocol.errors import BoughError, ErrorInfo
from ....runtime.protocol.patterns import PatternCache
from ....runtime.protocol.program import BranchFailed, Fork, Gen, Op, Program, ProgramEvent, Select, Use, Value
from ....runtime.protocol.request import Usage
from ....runtime.tools.registry import ToolCall
from .transcript import Mark, Prompt, open_role


@dataclass(frozen=True, eq=False, slots=True)
class Failure:
    """Why the branch `branch`, and with it those forked from it, has ended early."""

    branch: int
    error: ErrorInfo


@dataclass(eq=False)
class Run:
    """A stretch in flight: who hears of it, and how many of its instructions are still to be done."""

    program: Program
    listener: Callable[[ProgramEvent], None]
    started: float
    tools: Mapping[str, ToolCall] = field(default_factory=dict)
    patterns: PatternCache = field(default_factory=PatternCache)
    num_left: int = 0
    usage: Usage = field(default_factory=Usage)
    num_requests: int = 0
    over: bool = False
    told: set[Failure] = field(default_factory=set)

    def tell_failure(self, failure: Failure, index: int | None = None) -> None:
        """Says, once, that a branch has ended early."""
        if failure not in self.told and not self.over:
            self.told.add(failure)
            self.listener(BranchFailed(branch=failure.branch, error=failure.error, index=index))


@dataclass(eq=False, slots=True)
class Barrier:
    """Stands in a child's queue for a Join by `joiner`, and keeps where the child stood when it got there."""

    joiner: int
    child: Branch | None = None
    passed: bool = False
    failed: bool = False
    num_marks: int = 0
    values: dict[str, str] = field(default_factory=dict)

    def reach(self, branch: Branch | None, *, failed: bool = False) -> None:
        self.passed, self.failed, self.child = True, failed, branch
        if branch is not None:
            self.num_marks, self.values = len(branch.marks), dict(branch.values)


Barriers = Mapping[tuple[int, int], Barrier]
"""By the index of the Join, and the child."""


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """An instruction in a branch's queue. `known`: its index means something to whoever runs the stretch."""

    run: Run
    item: Item
    barriers: Barriers
    known: bool = True

    @property
    def op(self) -> Op:
        return self.item.op

    @property
    def index(self) -> int | None:
        return self.item.index if self.known else None


@dataclass(eq=False, slots=True)
class Surplus:
    """Text that the model has written beyond what the program has asked for so far, when it was asked for `op`.

    complete    the model ended there by itself
    num_tokens  of this and what came before it, at most
    """

    text: str
    op: Gen
    complete: bool
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call brings: a value, how many requests that took, and what the model wrote beyond it."""

    value: Value
    num_requests: int = 1
    surplus: Surplus | None = None


@dataclass(eq=False, slots=True)
class Call:
    """A generation, a choice or a tool's use in flight.

    arguments   of a Use: text by name
    ahead       in a message, what follows this generation, as far as it is recorded: texts and generations
    timeout_s   what is left of the program's time
    emit        is told of text as it comes
    finish      is told the answer or the error, once
    """

    op: Gen | Select | Use
    prompt: Prompt
    run: Run
    timeout_s: float | None
    emit: Callable[[str], None]
    finish: Callable[[Answer | BoughError], None]
    arguments: Mapping[str, str] = field(default_factory=dict)
    ahead: tuple[Op, ...] = ()


Waits = Generator[Call | None, Answer, None]
"""An instruction as it is carried out: it yields a call whose answer it needs, or None if it has to wait for others."""


@dataclass(eq=False, slots=True)
class Branch:
    """One branch that has begun.

    made        how many values of each name it has made
    inside      the loops that it is in
    steps       the instruction under way, as a generator; `top` is it, `step` the one in a block that it has come to
    call        what it waits for, and in `inbox` what has come of that
    isolated    what fails here, or below, ends this branch only; it is begun anew `retries` times
    forked_*    how far it was when it was forked
    """

    id: int
    marks: list[Mark] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    made: Counter[str] = field(default_factory=Counter)
    inside: list[Item] = field(default_factory=list)
    queue: deque[Step | Barrier] = field(default_factory=deque)
    steps: Waits | None = None
    top: Step | None = None
    step: Step | None = None
    call: Call | None = None
    inbox: Answer | BoughError | None = None
    surplus: Surplus | None = None
    isolated: bool = False
    retries: int = 0
    attempt: int = 0
    num_ops: int = 0
    num_forked_marks: int = 0
    num_forked_inside: int = 0
    forked_values: Mapping[str, str] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        return self.steps is None and not self.queue

    @property
    def role(self) -> str | None:
        """Of the open message."""
        return open_role(self.marks)

    def fork(self, branch_id: int, queue: deque[Step | Barrier], op: Fork) -> Branch:
        """A branch that goes on from here with the instructions of `queue`."""
        return Branch(
            id=branch_id,
            marks=list(self.marks),
            values=dict(self.values),
            inside=list(self.inside),
            queue=queue,
            isolated=op.isolated,
            retries=op.retries,
            num_forked_marks=len(self.marks),
            num_forked_inside=len(self.inside),
            forked_values=dict(self.values),
        )

    def restart(self) -> None:
        """Everything since the fork is void."""
        del self.marks[self.num_forked_marks :]
        del self.inside[self.num_forked_inside :]
        self.values = dict(self.forked_values)
        self.made = Counter()
        self.surplus = None
        self.num_ops = 0
        self.attempt += 1

    def adopt(self, child: Branch, barrier: Barrier) -> None:
        """Appends what `child` has appended from its fork up to `barrier`."""
        self.marks += child.marks[child.num_forked_marks : barrier.num_marks]
        for name, value in barrier.values.items():
            self.values.setdefault(name, value)

    def give_up(self) -> list[Step | Barrier]:
        """Stops, and returns what is not done, the instruction under way included."""
        steps, self.steps = self.steps, None
        if steps is not None:
            steps.close()
        left = [*([self.top] if self.top is not None else []), *self.queue]
        self.queue = deque()
        self.top = self.step = self.inbox = None
        return left
