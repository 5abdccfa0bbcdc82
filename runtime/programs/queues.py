"""Puts instructions into the queues of their branches: those of a submission, or of a block that is entered."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ..protocol.program import Cancel, Fork
from .state import Barrier, Barriers, Branch, Run, State, Step, Values
from .validate import Block, Item, joins_of

NEVER, NOT_YET = -2, -1
"""Scopes of branches that are forked in a block: they will not begin, or it is not known yet whether they will."""


def enqueue(state: State, run: Run, block: Block) -> None:
    """Puts a submission into the queues. Cancels are none of it: they do not wait."""
    items = [item for item in block.items if not isinstance(item.op, Cancel)]
    _enqueue(state, run, items, {}, scope=0)


def enter(state: State, step: Step, block: Block, branch: Branch, *, again: Step | None = None) -> None:
    """Puts the instructions of a block before what its branch has to do, and `again` after them."""
    before = branch.queue
    branch.queue = deque()
    given, branch.given = branch.given, None  # they come again with the instruction that holds them
    _enqueue(state, step.run, block.items, step.barriers, scope=step.item.index + 1)
    if again is not None:
        give(branch, again)
    branch.queue += before
    branch.given = given


def pass_over(state: State, block: Block) -> None:
    """Settles a block that is not entered: what it would have forked never begins."""
    for fork in block.forks:
        for child in fork.children:
            branch = state.branches[child]
            if not branch.started and branch.scope == NOT_YET:
                branch.scope = NEVER
    state.walk.stirred = True


def give(branch: Branch, entry: Step | Barrier) -> None:
    """Puts something into a branch's queue; one that has ended early does nothing more."""
    if branch.given is not None:
        branch.given.append(entry)
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
    branch.attempts = ()
    branch.inside, branch.num_forked_inside = [], 0
    branch.given = None
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
    return branch is None or branch.failure is not None or branch.scope == NEVER


def _renew(state: State, fork: Fork, scope: int) -> None:
    """Makes the branches that `fork` will start, for the first time or in another turn of a loop."""
    parent = state.branches[fork.branch]
    for child in fork.children:
        parent.children[child] = None
        branch = state.branches.get(child)
        if branch is None:
            branch = state.branches[child] = Branch(child, state.blank, parent=fork.branch)
        else:
            state.forget(branch)
        reset(state, branch)
        branch.scope = scope
        branch.isolated, branch.retries = fork.isolated, fork.retries
        branch.failure = parent.failure
        if scope != NOT_YET and (fork.retries or parent.given is not None):
            branch.given = []
