"""State of a running program: its submissions, its branches with their values, and their queues."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, Self

from ..protocol.condition import Ref, Times
from ..protocol.errors import BoughError, EngineError, ErrorInfo, RequestError, to_info
from ..protocol.patterns import Matching
from ..protocol.program import BranchFailed, Cancel, Fork, Op, Program, ProgramEvent
from ..protocol.request import Usage
from ..tools.registry import ToolCall
from .costs import BRANCH_TOKENS, VALUE_TOKENS, Budget
from .memory import Account, Memory
from .validate import Block, Item, joins_of

logger = logging.getLogger("bough.engine")

ProgramListener = Callable[[ProgramEvent], None]


CallKind = Literal["text", "tool"]


class CallId(NamedTuple):
    """Id of a call, other than a request, that a branch waits for: the encoding of a text, or a tool."""

    kind: CallKind
    id: str


# Submissions


@dataclass(eq=False, slots=True)
class Failure:
    """Error that ended the branch `branch`, and with it those forked from it."""

    branch: int
    error: ErrorInfo


@dataclass(eq=False)
class Run:
    """A submission in flight, with its listener.

    max_work    units of work that it may take
    num_tokens  memory of its instructions, counted as tokens
    num_left    number of instructions left
    over        it has ended: nothing more is done for it
    begun       a first token has arrived
    told        failures of branches that have been sent to the listener
    key         key by which its sender identifies it; None: it has none
    """

    program: Program
    listener: ProgramListener
    started: float
    max_work: float
    tools: Mapping[str, ToolCall] = field(default_factory=dict)
    num_tokens: int = 0
    num_left: int = 0
    usage: Usage = field(default_factory=Usage)
    num_requests: int = 0
    work: int = 0
    over: bool = False
    begun: bool = False
    told: set[Failure] = field(default_factory=set)
    key: object = None

    @property
    def deadline(self) -> float:
        whole = self.program.timeout_s
        return math.inf if whole is None else self.started + whole

    @property
    def exhausted(self) -> bool:
        return self.work > self.max_work

    def spend(self, work: int) -> None:
        """Counts work done for the submission.

        Raises:
            EngineError: the submission exceeds `max_work`.
        """
        self.work += work
        if self.exhausted:
            message = f"the program does more than {self.max_work} instructions, those that are repeated included"
            raise EngineError(message, code="program_too_long", param="ops")

    def time_left(self, now: float, limit_s: float | None = None) -> float | None:
        """Returns the seconds left for a call: its own limit or the rest of the program's, if less; None: no limit.

        Raises:
            EngineError: the program's deadline has passed.
        """
        whole = self.program.timeout_s
        left = None if whole is None else whole - (now - self.started)
        if left is not None and left <= 0:
            raise EngineError(f"the program was not done within {whole:g} s", code="generation_timeout")
        return min((seconds for seconds in (left, limit_s) if seconds is not None), default=None)

    def must_end(self, now: float) -> bool:
        """True once all time or work is spent, so that no branch can continue or restart."""
        return self.exhausted or now >= self.deadline

    def tell(self, event: ProgramEvent) -> None:
        """Sends an event. An error of the listener is logged, so that it does not affect other programs."""
        try:
            self.listener(event)
        except Exception:
            logger.exception("the listener of program %s failed", self.program.id)

    def tell_failure(self, failure: Failure, index: int | None = None) -> None:
        """Sends the failure of a branch, once."""
        if failure not in self.told:
            self.told.add(failure)
            self.tell(BranchFailed(branch=failure.branch, error=failure.error, index=index))


# Queues


@dataclass(eq=False, slots=True)
class Barrier:
    """Barrier of a Join in a child's queue; `passed` once everything before it is done, or never will be.

    It records the child's state at that point, since the child may continue while its joiner is busy.

    joiner      the branch of the Join
    failed      the child ended before it reached the barrier
    place       end of the child's content at the barrier
    num_values  number of values that the child had made there
    """

    joiner: int = 0
    child: Branch | None = None
    passed: bool = False
    failed: bool = False
    place: Any = None
    num_values: int = 0

    def reach(self, branch: Branch, *, failed: bool = False) -> None:
        self.passed, self.failed, self.child = True, failed, branch
        self.place, self.num_values = branch.content.place(), branch.values.num_made


Barriers = Mapping[tuple[int, int], Barrier]
"""Barriers by the index of the Join, and the child."""


@dataclass(eq=False, slots=True)
class Step:
    """An instruction in a branch's queue, with its place in the submission that it came with.

    barriers    of a Join, and of the joins in the blocks of a When or Repeat whose children are older than the block
    turns       number of turns of a Repeat done before this step
    known       the index belongs to the submission in flight (False: to an earlier one), so that it can be reported
    """

    run: Run
    item: Item
    barriers: Barriers = field(default_factory=dict)
    turns: int = 0
    known: bool = True

    @property
    def index(self) -> int | None:
        return self.item.index if self.known else None


@dataclass(eq=False, slots=True)
class Pending:
    """Progress of an instruction that was tried and must be tried again.

    lacks       values that it waits for; it is not tried again before each has arrived, or never will
    num_done    children that it has forked, or found at their join, or values that it has reported as skipped
    num_appended    children whose content a join has appended
    matches     pattern matches in progress or done, by (pattern, text)
    found       results of searches, by (text, part)
    holds       outcome of its condition, once decided
    begun       state of a call that is begun in several slices
    unfinished  such a call continues, although the branch already waits for parts of it
    """

    step: Step
    lacks: list[Ref | Times] = field(default_factory=list)
    num_done: int = 0
    num_appended: int = 0
    matches: dict[tuple[str, str], Matching] = field(default_factory=dict)
    found: dict[tuple[str, str], bool] = field(default_factory=dict)
    holds: bool | None = None
    begun: Any = None
    unfinished: bool = False


# Branches


class Values(Mapping[str, str]):
    """The latest value of each name in a branch. Values from before a fork are shared, not copied."""

    __slots__ = ("_before", "_given", "_log", "_own", "made")

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        self._given: Mapping[str, str] = {} if given is None else given
        self._before = self._given  # never changed, but replaced when a fork merges new values
        self._own: dict[str, str] = {}
        self._log: list[tuple[str, str]] = []
        self.made: Counter[str] = Counter()
        """Number of values of each name made here, without those adopted at a join."""

    def keep(self, name: str, text: str) -> None:
        self._own[name] = text
        self._log.append((name, text))

    @property
    def num_to_merge(self) -> int:
        """Number of names that the next fork has to merge."""
        return len(self._before) + len(self._own) if self._own else 0

    def fork(self) -> Values:
        """Returns the initial values of a branch that is forked here."""
        if self._own:
            self._before, self._own = {**self._before, **self._own}, {}
        return Values(self._before)

    def anew(self) -> Values:
        """Returns the values at the fork."""
        return Values(self._given)

    @property
    def num_made(self) -> int:
        """Number of values kept so far: a position for `adopt`."""
        return len(self._log)

    def adopt(self, child: Values, num_made: int) -> None:
        """Adds the values of `child` at `num_made`, under names that do not exist here yet."""
        given: Mapping[str, str] = {} if child._given is self._before else child._given
        for name, text in {**given, **dict(child._log[:num_made])}.items():
            if name not in self:
                self.keep(name, text)

    @property
    def size(self) -> int:
        """Approximate number of entries that a join reads."""
        return len(self._given) + len(self._log)

    def __getitem__(self, name: str) -> str:
        return self._own[name] if name in self._own else self._before[name]

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._before

    def __iter__(self) -> Iterator[str]:
        return iter({**self._before, **self._own})

    def __len__(self) -> int:
        return len({**self._before, **self._own})


class Content(Protocol):
    """Text and messages of a branch, in the form that its machine needs.

    It only grows, except by `restart`. Contents of different machines are never combined.
    """

    @property
    def size(self) -> int:
        """Approximate number of tokens for the memory account, with those shared with other contents."""

    @property
    def length(self) -> int:
        """Number of tokens so far."""

    @property
    def num_pieces(self) -> int:
        """Number of entries that `adopt` visits."""

    @property
    def text(self) -> str: ...

    def fork(self) -> Self:
        """Returns the content of a branch that is forked here."""

    def restart(self) -> None:
        """Drops everything appended since the fork."""

    def place(self) -> Any:
        """Returns its current end, for `adopt`."""

    def adopt(self, child: Self, place: Any) -> None:
        """Appends the content of `child` between its fork and `place`."""

    def untold(self) -> Self | None:
        """Returns the content since the fork that has not been sent in the trace; None if there is none."""


@dataclass(eq=False, slots=True)
class Origin:
    """Fork of a branch, with everything needed to restart the branch.

    parent      the branch that forks it
    scope       the block that it belongs to, outside of which no instruction may name it; or NEVER, or NOT_YET
    isolated, retries   see Fork
    attempts    numbers of restarts of its ancestors, and its own at the end
    turns       `Branch.turns` of it and of its descendants, by branch, at the fork
    num_loops   number of loops around it at the fork
    given       all entries of its queue, kept if it may have to restart
    shared      tokens that count as its own, but are stored with its parent
    apart       true once it has copied these, to change them
    """

    parent: int | None = None
    scope: int = 0
    isolated: bool = False
    retries: int = 0
    attempts: tuple[int, ...] = ()
    turns: dict[int, Counter[str]] = field(default_factory=dict)
    num_loops: int = 0
    given: list[Step | Barrier] | None = None
    shared: int = 0
    apart: bool = False


@dataclass(eq=False, slots=True)
class Branch:
    """State of one branch. It is `started` once its parent has forked it.

    pending     progress of the next instruction, if it was tried
    running     ids of the requests and other calls that it waits for
    turns       number of values of each name that it has made, including those before a loop forked it again
    inside      the loops around it, outermost first
    looping     for each name, the unfinished loops that make values of it, so that its final value is still to come
    num_ops     number of instructions done
    children    the branches that it forks
    failure     the error that ended it early
    counted     tokens of it that count towards the program's limit
    """

    id: int
    content: Content
    origin: Origin = field(default_factory=Origin)
    started: bool = True
    values: Values = field(default_factory=Values)
    queue: deque[Step | Barrier] = field(default_factory=deque)
    pending: Pending | None = None
    running: set[str | CallId] = field(default_factory=set)
    turns: Counter[str] = field(default_factory=Counter)
    inside: list[Item] = field(default_factory=list)
    looping: dict[str, list[Item]] = field(default_factory=dict)
    num_ops: int = 0
    children: dict[int, None] = field(default_factory=dict)
    failure: Failure | None = None
    counted: int = 0

    @property
    def settled(self) -> bool:
        """True if all its instructions so far are done, or it has ended early."""
        return self.failure is not None or (self.started and not self.queue and not self.running)

    @property
    def ready(self) -> bool:
        if not (self.started and self.queue):
            return False
        return not self.running or (self.pending is not None and self.pending.unfinished)

    def pending_of(self, step: Step) -> Pending:
        """Returns the progress of `step`, its next instruction."""
        if self.pending is None or self.pending.step is not step:
            self.pending = Pending(step)
        return self.pending

    def keep(self, name: str, text: str) -> None:
        """Keeps a value that it has made."""
        self.values.keep(name, text)
        self.values.made[name] += 1
        self.turns[name] += 1

    def start_from(self, parent: Branch) -> None:
        """Starts at the parent's end with its tokens, whose pages the cache finds (`Interpreter._fork`)."""
        self.started = True
        self.content, self.values = parent.content.fork(), parent.values.fork()
        self.pending = None
        self.inside = list(parent.inside)
        origin, before = self.origin, self.origin.attempts
        origin.num_loops, origin.apart = len(parent.inside), False
        origin.attempts = (*parent.origin.attempts, before[-1] if before else 0)

    def start_anew(self) -> None:
        """Restarts the branch at its fork."""
        self.content.restart()
        self.values, self.pending = self.values.anew(), None
        *before, last = self.origin.attempts
        self.inside = self.inside[: self.origin.num_loops]
        self.origin.attempts = (*before, last + 1)

    def adopt(self, child: Branch, barrier: Barrier) -> None:
        """Appends the content of `child` between its fork and `barrier`, and adds its values."""
        self.content.adopt(child.content, barrier.place)
        self.values.adopt(child.values, barrier.num_values)


# Programs


@dataclass(eq=False, slots=True)
class Walk:
    """Progress of the interpreter through a program's branches.

    attempts    the walk in progress, which yields after each attempt at an instruction
    active      an attempt is being made
    posted      the walk is scheduled to continue
    stirred     something has changed that may let a branch continue
    certain     all instructions have been tried from their beginning since the last change
    held        a submission is being put into the queues: no branch is tried until all of it is there
    num_looked  branches and values that were examined and not yet counted as work
    """

    attempts: Iterator[None] | None = None
    active: bool = False
    posted: bool = False
    held: bool = False
    stirred: bool = False
    certain: bool = False
    num_looked: int = 0


@dataclass(eq=False)
class State:
    """A program's state during and between submissions.

    born        time of the program's start
    blank       content of a branch that has not started
    in_flight   submissions whose end has not been sent
    used        time at which a submission last began or ended
    kept        the state outlives the submissions in flight
    account     its tokens in the memory of all programs
    untold      contents of restarted branches that have not been sent in the trace
    """

    id: str
    namespace: str
    born: float
    blank: Content
    budget: Budget
    account: Account = field(default_factory=lambda: Account(Memory(), ""))
    branches: dict[int, Branch] = field(default_factory=dict)
    in_flight: list[Run] = field(default_factory=list)
    used: float = 0.0
    kept: bool = True
    num_requests: int = 0
    num_tokens: int = 0
    work: int = 0
    untold: list[Content] = field(default_factory=list)
    walk: Walk = field(default_factory=Walk)

    def __post_init__(self) -> None:
        self.branches[0] = Branch(0, self.blank.fork())
        self.count(BRANCH_TOKENS)

    @property
    def runs(self) -> list[Run]:
        """Submissions that have instructions left."""
        return [run for run in self.in_flight if not run.over]

    def spend(self, run: Run, work: int) -> None:
        """Counts work done for `run`, also towards the program's slice of time.

        Raises:
            EngineError: the submission exceeds its limit.
        """
        self.work += work
        run.spend(work)

    def release(self) -> None:
        """Drops the pending work of an ended program's branches.

        It refers to the program: left to the garbage collector, such cycles stop all steps for tenths of a second.
        """
        self.walk.attempts = None
        for branch in self.branches.values():
            branch.pending = None

    def new_id(self) -> str:
        """Returns an id for a request of the program."""
        number, self.num_requests = self.num_requests, self.num_requests + 1
        return f"{self.id}/{number}"

    def new_call(self, kind: CallKind) -> CallId:
        """Returns an id for a call of the program other than a request."""
        return CallId(kind, self.new_id())

    def add_tokens(self, count: int, branch: Branch, *, shared: bool = False) -> None:
        """Counts tokens added to a branch; an instruction of a few bytes can add very many.

        They are removed with the branch. Tokens `shared` with another branch take no memory.

        Raises:
            RequestError: the program exceeds its limit.
            OverloadedError: the memory of all programs has no room for them.
        """
        branch.counted += count
        if shared:
            branch.origin.shared += count
            self.num_tokens += count
        else:
            self.count(count)
        if self.num_tokens > self.budget.tokens:
            raise RequestError(f"a program's branches may have {self.budget.tokens} tokens in all", param="ops")
        self.account.check()

    def add_values(self, count: int, branch: Branch) -> None:
        """Counts values that a branch keeps, besides their texts. Raises as `add_tokens`."""
        self.add_tokens(count * VALUE_TOKENS, branch)

    def count(self, count: int) -> None:
        """Adds `count` tokens, which may be negative, to the program's total and its memory account."""
        self.num_tokens += count
        self.account.add(count)

    def recount(self, branch: Branch) -> None:
        """Counts a branch again after it was restarted at its fork."""
        branch.counted = branch.origin.shared = branch.content.size
        self.num_tokens += branch.counted
        if branch.origin.apart:
            self.unshare(branch)

    def unshare(self, branch: Branch) -> None:
        """Counts a branch's shared tokens as its own, since it has copied them to change them."""
        branch.origin.apart = True
        self.account.add(branch.origin.shared)
        branch.origin.shared = 0

    def forget(self, branch: Branch) -> None:
        """Uncounts the tokens of a branch that is about to be reset. Those not yet sent in the trace stay counted."""
        self.count(branch.origin.shared - branch.counted)
        self.num_tokens -= branch.origin.shared
        branch.counted = branch.origin.shared = 0
        if any(run.program.trace for run in self.runs) and (untold := branch.content.untold()) is not None:
            self.count(untold.size)
            self.untold.append(untold)


@dataclass(frozen=True)
class Slice:
    """Limit for a program before the engine's next step: in units of work, and as a time by `time.monotonic`."""

    work: float = math.inf
    until: float = math.inf

    def over(self, state: State) -> bool:
        return state.work >= self.work or time.monotonic() >= self.until


class Outcome(Protocol):
    """Receiver of the ends of instructions that waited for a call, on the programs' thread: the interpreter."""

    def ended(self, frame: Frame) -> None: ...

    def failed(self, frame: Frame, info: ErrorInfo) -> None: ...

    def pause(self, state: State) -> None:
        """Raises PausedError if the slice of time is over."""

    def walk(self, state: State) -> None:
        """Executes all branches as far as possible."""


@dataclass(slots=True, eq=False)
class Frame:
    """An instruction being executed, with its branch and program. If it waits, its end is reported to `outcome`."""

    state: State
    branch: Branch
    step: Step
    outcome: Outcome

    @property
    def op(self) -> Op:
        return self.step.item.op

    @property
    def run(self) -> Run:
        return self.step.run

    def spend(self, work: int) -> None:
        """Counts work. Raises EngineError if the submission exceeds its limit."""
        self.state.spend(self.run, work)

    def pause(self) -> None:
        """Raises PausedError if the program's slice of time is over."""
        self.outcome.pause(self.state)

    @property
    def pending(self) -> Pending:
        """Progress of the instruction, for when it is tried again."""
        return self.branch.pending_of(self.step)

    def go_on(self) -> None:
        """Resumes the program, since the instruction no longer has to wait."""
        self.outcome.walk(self.state)

    def ended(self) -> None:
        self.outcome.ended(self)

    def failed(self, info: ErrorInfo) -> None:
        self.outcome.failed(self, info)

    def fail(self, error: Exception) -> None:
        """Fails the instruction with an exception, which is a bug unless it is a BoughError."""
        if isinstance(error, BoughError):
            self.failed(to_info(error))
            return
        logger.error("an instruction of program %s failed", self.state.id, exc_info=error)
        self.failed(ErrorInfo(code="internal_error", message="the instruction failed"))


# Pending instructions

NEVER, NOT_YET = -2, -1
"""Scopes of branches forked in a block that was passed over, or has not been decided on yet."""


def enqueue(state: State, run: Run, items: Iterable[Item]) -> None:
    """Puts instructions of a submission into the queues, except cancels, which are done at once."""
    _enqueue(state, run, [item for item in items if not isinstance(item.op, Cancel)], {}, scope=0)


def enter(state: State, step: Step, block: Block, branch: Branch, *, again: Step | None = None) -> None:
    """Puts the instructions of a block, followed by `again`, at the head of the queue of `branch`."""
    before = branch.queue
    branch.queue = deque()
    given, branch.origin.given = branch.origin.given, None  # after a restart the instruction queues its block again
    _enqueue(state, step.run, block.items, step.barriers, scope=step.item.index + 1)
    if again is not None:
        give(branch, again)
    before.extendleft(reversed(branch.queue))  # O(block), however long the queue is
    branch.queue = before
    branch.origin.given = given


def pass_over(state: State, block: Block) -> None:
    """Marks the branches that a passed-over block would have forked: they never start."""
    for fork in block.forks:
        for child in fork.children:
            branch = state.branches[child]
            if not branch.started and branch.origin.scope == NOT_YET:
                branch.origin.scope = NEVER
    state.walk.stirred = True


def give(branch: Branch, entry: Step | Barrier) -> None:
    """Appends an entry to a branch's queue; if the branch has ended early, passes a barrier as failed, drops a step."""
    if branch.origin.given is not None:
        branch.origin.given.append(entry)
    if branch.failure is None:
        branch.queue.append(entry)
        if isinstance(entry, Step):
            entry.run.num_left += 1
    elif isinstance(entry, Barrier):
        entry.reach(branch, failed=True)


def reset(state: State, branch: Branch) -> None:
    """Resets a branch to before its fork, and empties its queue."""
    branch.started = False
    branch.content, branch.values = state.blank, Values()
    branch.pending = None
    branch.queue.clear()
    branch.running = set()
    branch.inside = []
    branch.origin.attempts, branch.origin.num_loops, branch.origin.given = (), 0, None
    branch.failure = None


def _enqueue(state: State, run: Run, items: Iterable[Item], inherited: Barriers, *, scope: int) -> None:
    for item in items:
        op = item.op
        branch = state.branches[op.branch]
        if isinstance(op, Fork):
            _renew(state, op, scope)
        for block in item.blocks:
            for fork in block.forks:
                if any(_is_new(state.branches.get(child)) for child in fork.children):
                    _renew(state, fork, NOT_YET)
        barriers: dict[tuple[int, int], Barrier] = {}
        for key in joins_of(item):
            barrier = inherited.get(key) or barriers.get(key)
            if barrier is None:
                barrier = Barrier(op.branch)
                give(state.branches[key[1]], barrier)
            barriers[key] = barrier
        if branch.failure is not None:
            run.tell_failure(branch.failure)
        give(branch, Step(run, item, barriers))


def _is_new(branch: Branch | None) -> bool:
    return branch is None or branch.failure is not None or branch.origin.scope == NEVER


def _renew(state: State, fork: Fork, scope: int) -> None:
    """Creates the branches that `fork` will start, or resets them for another turn of a loop."""
    parent = state.branches[fork.branch]
    for child in fork.children:
        parent.children[child] = None
        branch = state.branches.get(child)
        if branch is None:
            branch = state.branches[child] = Branch(child, state.blank, Origin(fork.branch))
            state.count(BRANCH_TOKENS)
        else:
            state.forget(branch)
        reset(state, branch)
        branch.origin.scope = scope
        branch.origin.isolated, branch.origin.retries = fork.isolated, fork.retries
        branch.failure = parent.failure
        if scope != NOT_YET and (fork.retries or parent.origin.given is not None):
            branch.origin.given = []
