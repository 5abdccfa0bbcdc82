"""What the executor knows of a program: its state, and the stretches that are in flight."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ..protocol.errors import EngineError, RequestError
from ..protocol.patterns import Pattern
from ..protocol.program import BranchFailed, Program, ProgramEvent
from ..protocol.request import Usage
from ..tools.registry import ToolCall
from .branch import Appended, Branch, Failure, Stretch

logger = logging.getLogger("bough.engine")

ProgramListener = Callable[[ProgramEvent], None]

MAX_STATE_TOKENS = 1 << 22
"""What a program may put into all branches of its state: tokens of text, characters of values, copies by forks."""

MAX_WORK = 200_000
"""What one stretch may do: an instruction is 1, and so are a branch that is forked or joined and a thousand characters
or tokens that are copied or compared. With loops a few instructions can ask for very many."""

RESTART_WORK = 100
ENCODED = 64
"""Characters that are encoded, or told to who listens, in the time of one instruction."""


@dataclass(eq=False)
class Run(Stretch):
    """A stretch in flight, with who hears of it. `told`: failures of branches that it has heard of; `begun`: there is a
    first token."""

    program: Program
    listener: ProgramListener
    started: float
    tools: Mapping[str, ToolCall] = field(default_factory=dict)
    patterns: Mapping[str, Pattern] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    num_requests: int = 0
    work: int = 0
    over: bool = False
    begun: bool = False
    told: set[Failure] = field(default_factory=set)

    @property
    def exhausted(self) -> bool:
        return self.work > MAX_WORK

    def spend(self, work: int) -> None:
        """Counts what is done for the stretch.

        Raises:
            EngineError: it is too much.
        """
        self.work += work
        if self.exhausted:
            message = f"the program does more than {MAX_WORK} instructions, those that are repeated included"
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
        """It has had all the time or work that it may have: no branch of it can go on, or begin anew."""
        whole = self.program.timeout_s
        return self.exhausted or (whole is not None and now - self.started >= whole)

    def tell(self, event: ProgramEvent) -> None:
        """Says something; others are not concerned if that fails."""
        try:
            self.listener(event)
        except Exception:
            logger.exception("who listens to program %s failed", self.program.id)

    def tell_failure(self, failure: Failure, index: int | None = None) -> None:
        """Says, once, that a branch has ended early."""
        if failure not in self.told:
            self.told.add(failure)
            self.tell(BranchFailed(branch=failure.branch, error=failure.error, index=index))


@dataclass(eq=False)
class State:
    """A program's state between and during stretches. `kept`: it outlives the stretches that are in flight.

    untold      pieces of branches that began anew, of which the timeline has not heard yet
    stirred     something has happened to branches other than the one that was looked at
    certain     nothing has happened since all that waits was tried from its beginning
    num_looked  branches that were looked at and not counted as work yet
    walking     the walk that is under way, an attempt at an instruction at a time; `posted`: it will be gone on with
    """

    id: str
    namespace: str
    born: float
    branches: dict[int, Branch] = field(default_factory=lambda: {0: Branch(0)})
    runs: list[Run] = field(default_factory=list)
    used: float = 0.0
    kept: bool = True
    num_requests: int = 0
    num_tokens: int = 0
    work: int = 0
    untold: list[tuple[int, Appended]] = field(default_factory=list)
    stirred: bool = False
    certain: bool = False
    num_looked: int = 0
    walking: Iterator[None] | None = None
    in_walk: bool = False
    posted: bool = False

    def spend(self, run: Run, work: int) -> None:
        """Counts what is done for `run`, also for the slice of time that the program has.

        Raises:
            EngineError: it is too much.
        """
        self.work += work
        run.spend(work)

    @property
    def traced(self) -> bool:
        return any(run.program.trace for run in self.runs)

    def add_tokens(self, count: int, branch: Branch | None = None) -> None:
        """Counts tokens that a program has put in; an instruction of a few bytes can ask for very many.

        Those of a `branch` are forgotten with it.

        Raises:
            RequestError: there are too many.
        """
        self.num_tokens += count
        if branch is not None:
            branch.counted += count
        if self.num_tokens > MAX_STATE_TOKENS:
            raise RequestError(f"a program's branches may have {MAX_STATE_TOKENS} tokens in all", param="ops")

    def recount(self, branch: Branch) -> None:
        """The branch has gone back to a part of what it had."""
        branch.counted = branch.size
        self.num_tokens += branch.counted

    def forget(self, branch: Branch) -> None:
        """What the branch has is about to go; but what is to be told of it stays, and counts."""
        self.num_tokens -= branch.counted
        branch.counted = 0
        if self.traced:
            own = [(start, piece) for start, piece in branch.appended if start >= branch.forked_tokens]
            untold = [(start, piece) for start, piece in own if piece.origins is None]
            self.num_tokens += sum(1 + len(piece.tokens) for _, piece in untold)
            self.untold += untold
