"""The state of a running program: its submissions, its branches and their values, and their queues."""

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
    """Id of what a branch waits for besides requests: a text that is encoded, or a tool."""

    kind: CallKind
    id: str


# Submissions


@dataclass(eq=False, slots=True)
class Failure:
    """The reason why the branch `branch`, and with it those forked from it, has ended early."""

    branch: int
    error: ErrorInfo


@dataclass(eq=False)
class Run:
    """A submission in flight, with its listener.

    max_work    units of work that it may take
    num_tokens  what its instructions take in memory
    num_left    instructions that are still to be done
    begun       a first token has come
    told        failures of branches that the listener has heard of
    key         by which its sender knows it; None: it has none
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
        """Counts work that is done for the submission.

        Raises:
            EngineError: it is too much.
        """
        self.work += work
        if self.exhausted:
            message = f"the program does more than {self.max_work} instructions, those that are repeated included"
            raise EngineError(message, code="program_too_long", param="ops")

    def time_left(self, now: float, limit_s: float | None = None) -> float | None:
        """Seconds that are left for a call: its own limit, and what the program has left of its.

        Raises:
            EngineError: the program's time is over.
        """
        whole = self.program.timeout_s
        left = None if whole is None else whole - (now - self.started)
        if left is not None and left <= 0:
            raise EngineError(f"the program was not done within {whole:g} s", code="generation_timeout")
        return min((seconds for seconds in (left, limit_s) if seconds is not None), default=None)

    def must_end(self, now: float) -> bool:
        """Returns true once all time or work is spent: no branch can go on, or begin anew."""
        return self.exhausted or now >= self.deadline

    def tell(self, event: ProgramEvent) -> None:
        """Sends an event; a listener that fails is no concern of others."""
        try:
            self.listener(event)
        except Exception:
            logger.exception("the listener of program %s failed", self.program.id)

    def tell_failure(self, failure: Failure, index: int | None = None) -> None:
        """Sends, once, that a branch has ended early."""
        if failure not in self.told:
            self.told.add(failure)
            self.tell(BranchFailed(branch=failure.branch, error=failure.error, index=index))


# Queues


@dataclass(eq=False, slots=True)
class Barrier:
    """Stands in a child's queue for a Join: passed means that everything before it is done, or never will be.

    It keeps where the child stood then, since a child may go on while its joiner is busy.

    joiner      the branch of the Join
    failed      the child ended before it came here
    place       how far the child's content went, and `num_values` its values
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
"""By the index of the Join, and the child."""


@dataclass(eq=False, slots=True)
class Step:
    """An instruction in a branch's queue, with its place in the submission that brought it.

    barriers    of a Join, and of the joins in the blocks of a When or Repeat whose children are older than the block
    turns       number of times that the body of a Repeat has been done
    known       the place is one that the sender can name (False: an earlier submission brought it)
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
    """An instruction that was tried and has to be tried again, with what is known of it.

    lacks       values that it waits for: until all of them have come, nothing else is looked at
    num_done    children that it has forked, or found at their join, or values that it has told of
    num_appended    children of which a join has appended what they had
    matches     of patterns with texts, under way or done
    found       whether a text contains another, by both
    holds       its condition, once decided
    begun       what is done already of a call; `unfinished`: it is gone on with, although the branch waits for a part
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
    """The last value of each name in a branch. Values from before a fork are shared with it, and never copied."""

    __slots__ = ("_before", "_given", "_log", "_own", "made")

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        self._given: Mapping[str, str] = {} if given is None else given
        self._before = self._given  # never changed, but replaced when a fork takes in what has been made
        self._own: dict[str, str] = {}
        self._log: list[tuple[str, str]] = []
        self.made: Counter[str] = Counter()
        """Number of values of each name that were made here, those taken over at a join not among them."""

    def keep(self, name: str, text: str) -> None:
        self._own[name] = text
        self._log.append((name, text))

    @property
    def num_to_merge(self) -> int:
        """The names that the next fork has to put together."""
        return len(self._before) + len(self._own) if self._own else 0

    def fork(self) -> Values:
        """Returns what a branch begins with that is forked here."""
        if self._own:
            self._before, self._own = {**self._before, **self._own}, {}
        return Values(self._before)

    def anew(self) -> Values:
        """Returns what there was at the fork."""
        return Values(self._given)

    @property
    def num_made(self) -> int:
        """A place in the order in which values were made, for `adopt`."""
        return len(self._log)

    def adopt(self, child: Values, num_made: int) -> None:
        """Takes over what `child` had once it had made `num_made` values, of names that are not there."""
        given: Mapping[str, str] = {} if child._given is self._before else child._given
        for name, text in {**given, **dict(child._log[:num_made])}.items():
            if name not in self:
                self.keep(name, text)

    @property
    def size(self) -> int:
        """About how many entries a fork or a join looks at."""
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
    """Text and messages that a branch has appended, in the form that its machine needs.

    Only ever grows, but for `restart`. Contents of different machines never meet.
    """

    @property
    def size(self) -> int:
        """About how many tokens it has, those included that it shares with others."""

    @property
    def length(self) -> int:
        """Tokens so far."""

    @property
    def num_pieces(self) -> int:
        """Entries that `adopt` looks at one by one."""

    @property
    def text(self) -> str: ...

    def fork(self) -> Self:
        """Returns a copy, which counts as forked here."""

    def restart(self) -> None:
        """Goes back to where it was forked."""

    def place(self) -> Any:
        """Returns where it stands now, for `adopt`."""

    def adopt(self, child: Self, place: Any) -> None:
        """Appends what `child` has appended from its fork up to `place`."""

    def untold(self) -> Self | None:
        """Returns what the trace has not told yet of what was appended since the fork; None if there is nothing."""


@dataclass(eq=False, slots=True)
class Origin:
    """Fork of a branch, and what it takes to begin the branch anew.

    parent      the branch that forks it
    scope       the block that it belongs to: instructions elsewhere cannot be for it
    isolated, retries   as its Fork says
    attempts    of all that it descends from, itself last
    turns       those of it and of the branches that it forks, by branch, as they were at the fork
    num_loops   that it was in at the fork
    given       everything that was put into its queue, kept if it may have to be done again
    shared      tokens that are counted as its own, but are its parent's
    apart       there are none: it has had to copy them, to change them
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

    pending     what is known of the next instruction, if it was tried
    running     ids of the requests and tool calls that it waits for
    turns       number of values of each name that it has made, also before a loop forked it anew
    inside      the loops that it is in, outermost first
    looping     of each name the loops, not over yet, that make values of it: the last one is still to come
    children    the branches that it forks
    failure     it has ended early
    counted     tokens of it that the program's bound counts
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
        """Nothing more comes from what it was given."""
        return self.failure is not None or (self.started and not self.queue and not self.running)

    @property
    def ready(self) -> bool:
        if not (self.started and self.queue):
            return False
        return not self.running or (self.pending is not None and self.pending.unfinished)

    def pending_of(self, step: Step) -> Pending:
        """Returns what is known of `step`, its next instruction."""
        if self.pending is None or self.pending.step is not step:
            self.pending = Pending(step)
        return self.pending

    def keep(self, name: str, text: str) -> None:
        """Keeps a value that it has made."""
        self.values.keep(name, text)
        self.values.made[name] += 1
        self.turns[name] += 1

    def start_from(self, parent: Branch) -> None:
        """Begins where `parent` stands: with its tokens, whose pages the cache finds again (`Interpreter._fork`)."""
        self.started = True
        self.content, self.values = parent.content.fork(), parent.values.fork()
        self.pending = None
        self.inside = list(parent.inside)
        origin, before = self.origin, self.origin.attempts
        origin.num_loops, origin.apart = len(parent.inside), False
        origin.attempts = (*parent.origin.attempts, before[-1] if before else 0)

    def start_anew(self) -> None:
        """Goes back to where it was forked."""
        self.content.restart()
        self.values, self.pending = self.values.anew(), None
        *before, last = self.origin.attempts
        self.inside = self.inside[: self.origin.num_loops]
        self.origin.attempts = (*before, last + 1)

    def adopt(self, child: Branch, barrier: Barrier) -> None:
        """Appends what `child` has appended from its fork up to `barrier`."""
        self.content.adopt(child.content, barrier.place)
        self.values.adopt(child.values, barrier.num_values)


# Programs


@dataclass(eq=False, slots=True)
class Walk:
    """Progress of the interpreter through a program's branches.

    attempts    the walk that is under way, an attempt at an instruction at a time
    active      an attempt is being made; `posted`: the walk will be gone on with
    stirred     something has happened to branches other than the one that was looked at
    certain     nothing has happened since all that waits was tried from its beginning
    held        a submission is being put into the queues: nothing is looked at until all of it is there
    num_looked  branches that were looked at and not counted as work yet
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
    """A program's state between and during submissions. `kept`: it outlives those that are in flight.

    blank       the content of a branch that has not begun
    in_flight   submissions whose listeners have not heard their end
    account     what it holds of everybody's memory
    untold      contents of branches that began anew, of which the trace has not told yet
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
        """Submissions that have something to do."""
        return [run for run in self.in_flight if not run.over]

    def spend(self, run: Run, work: int) -> None:
        """Counts work that is done for `run`, also for the slice of time that the program has.

        Raises:
            EngineError: it is too much.
        """
        self.work += work
        run.spend(work)

    def new_id(self) -> str:
        """Returns an id for a request of the program."""
        number, self.num_requests = self.num_requests, self.num_requests + 1
        return f"{self.id}/{number}"

    def new_call(self, kind: CallKind) -> CallId:
        """Returns an id for another call of the program: no program's request has it."""
        return CallId(kind, self.new_id())

    def add_tokens(self, count: int, branch: Branch, *, shared: bool = False) -> None:
        """Counts tokens that a program has put into a branch; an instruction of a few bytes can ask for very many.

        They are forgotten with the branch. Those that are `shared` with another branch take no memory.

        Raises:
            RequestError: there are too many.
            OverloadedError: there is no room for them.
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
        """Counts tokens that it holds, or no longer holds."""
        self.num_tokens += count
        self.account.add(count)

    def recount(self, branch: Branch) -> None:
        """Counts a branch again that has gone back to where it was forked."""
        branch.counted = branch.origin.shared = branch.content.size
        self.num_tokens += branch.counted
        if branch.origin.apart:
            self.unshare(branch)

    def unshare(self, branch: Branch) -> None:
        """Counts as a branch's own what it has had to copy to change it."""
        branch.origin.apart = True
        self.account.add(branch.origin.shared)
        branch.origin.shared = 0

    def forget(self, branch: Branch) -> None:
        """Takes off the count what a branch will lose. What the trace has still to tell of it stays, and counts."""
        self.count(branch.origin.shared - branch.counted)
        self.num_tokens -= branch.origin.shared
        branch.counted = branch.origin.shared = 0
        if any(run.program.trace for run in self.runs) and (untold := branch.content.untold()) is not None:
            self.count(untold.size)
            self.untold.append(untold)


@dataclass(frozen=True)
class Slice:
    """Bound of how far a program may go before the engine makes a step: in work, and in seconds by `time.monotonic`."""

    work: float = math.inf
    until: float = math.inf

    def over(self, state: State) -> bool:
        return state.work >= self.work or time.monotonic() >= self.until


class Outcome(Protocol):
    """Hears of instructions that took their time, on the thread of its program."""

    def ended(self, frame: Frame) -> None: ...

    def failed(self, frame: Frame, info: ErrorInfo) -> None: ...

    def pause(self, state: State) -> None:
        """Makes way for the engine: raises PausedError if the slice of time is over."""

    def walk(self, state: State) -> None:
        """Goes on in all branches."""


@dataclass(slots=True, eq=False)
class Frame:
    """An instruction as its branch carries it out. `outcome` hears of its end if it takes its time."""

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
        """Counts work. Raises EngineError: the submission has done too much."""
        self.state.spend(self.run, work)

    def pause(self) -> None:
        """Makes way for the engine: raises PausedError if the program's slice of time is over."""
        self.outcome.pause(self.state)

    @property
    def pending(self) -> Pending:
        """The instruction, if it has to be tried again, with what is known of it."""
        return self.branch.pending_of(self.step)

    def go_on(self) -> None:
        """Has the program gone on with: what an instruction has waited for is there."""
        self.outcome.walk(self.state)

    def ended(self) -> None:
        self.outcome.ended(self)

    def failed(self, info: ErrorInfo) -> None:
        self.outcome.failed(self, info)

    def fail(self, error: Exception) -> None:
        """Has the instruction fail by an exception, which is a bug unless it is a BoughError."""
        if isinstance(error, BoughError):
            self.failed(to_info(error))
            return
        logger.error("an instruction of program %s failed", self.state.id, exc_info=error)
        self.failed(ErrorInfo(code="internal_error", message="the instruction failed"))


# What is still to do

NEVER, NOT_YET = -2, -1
"""Scopes of branches that are forked in a block: they will not begin, or it is not known yet whether they will."""


def enqueue(state: State, run: Run, items: Iterable[Item]) -> None:
    """Puts instructions of a submission into the queues. Cancels are none of it: they do not wait."""
    _enqueue(state, run, [item for item in items if not isinstance(item.op, Cancel)], {}, scope=0)


def enter(state: State, step: Step, block: Block, branch: Branch, *, again: Step | None = None) -> None:
    """Puts the instructions of a block before what its branch has to do, and `again` after them."""
    before = branch.queue
    branch.queue = deque()
    given, branch.origin.given = branch.origin.given, None  # they come again with the instruction that holds them
    _enqueue(state, step.run, block.items, step.barriers, scope=step.item.index + 1)
    if again is not None:
        give(branch, again)
    before.extendleft(reversed(branch.queue))  # in the time that the block takes, however many wait behind it
    branch.queue = before
    branch.origin.given = given


def pass_over(state: State, block: Block) -> None:
    """Settles a block that is not entered: what it would have forked never begins."""
    for fork in block.forks:
        for child in fork.children:
            branch = state.branches[child]
            if not branch.started and branch.origin.scope == NOT_YET:
                branch.origin.scope = NEVER
    state.walk.stirred = True


def give(branch: Branch, entry: Step | Barrier) -> None:
    """Puts something into a branch's queue; one that has ended early does nothing more."""
    if branch.origin.given is not None:
        branch.origin.given.append(entry)
    if branch.failure is None:
        branch.queue.append(entry)
        if isinstance(entry, Step):
            entry.run.num_left += 1
    elif isinstance(entry, Barrier):
        entry.reach(branch, failed=True)


def reset(state: State, branch: Branch) -> None:
    """Takes a branch back to before it was forked. What it was given is not given again."""
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
    """Makes the branches that `fork` will start, for the first time or in another turn of a loop."""
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
