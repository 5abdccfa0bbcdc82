"""Failures of isolated branches: ends or restarts them. Works only on a program's state."""

from __future__ import annotations

from collections import Counter

from .state import NOT_YET, Barrier, Branch, Failure, Run, State, Step, give, reset

CANCELLED = "cancelled"


def isolated(state: State, branch: Branch) -> Branch | None:
    """Returns the nearest isolated branch that `branch` is or descends from."""
    found: Branch | None = branch
    while found is not None and not found.origin.isolated:
        found = None if found.origin.parent is None else state.branches[found.origin.parent]
    return found


def within_isolated(state: State) -> set[int]:
    """Returns the ids of the branches that are or descend from an isolated one."""
    found: set[int] = set()
    for branch in state.branches.values():  # a branch comes after its parent
        if branch.origin.isolated or branch.origin.parent in found:
            found.add(branch.id)
    return found


def subtree(state: State, root: Branch) -> list[Branch]:
    """Returns `root` and its descendants, including those that have ended early by themselves."""
    return _descendants(state, root, ended=True)


def alive(state: State, root: Branch) -> list[Branch]:
    """Returns `root` and its descendants without those that have ended early, which end with all their descendants."""
    return _descendants(state, root, ended=False)


def _descendants(state: State, root: Branch, *, ended: bool) -> list[Branch]:
    found, members = {root.id}, [root]
    for member in members:
        for number in member.children:
            child = state.branches[number]
            if number not in found and (ended or child.failure is None):
                found.add(number)
                members.append(child)
    return members


def num_given(members: list[Branch]) -> int:
    """Counts the instructions and barriers that are queued again if the branches restart."""
    return sum(len(member.origin.given or ()) for member in members)


def may_begin_anew(members: list[Branch]) -> bool:
    """Returns True if no branch outside `members`, of which the first has failed, has joined one of them yet."""
    root = members[0]
    if root.origin.given is None or root.origin.attempts[-1] >= root.origin.retries:
        return False
    inside = {member.id for member in members}
    return not any(
        isinstance(entry, Barrier) and entry.passed and entry.joiner not in inside
        for member in members
        for entry in member.origin.given or ()
    )


def end(members: list[Branch], failure: Failure) -> set[Run]:
    """Ends branches early, so that joins of them no longer wait. Returns the submissions that lose instructions."""
    concerned: set[Run] = set()
    for member in members:
        if member.failure is not None:
            continue
        member.failure = failure
        for entry in _drop(member):
            if isinstance(entry, Step):
                concerned.add(entry.run)
            else:
                entry.reach(member, failed=True)
    return concerned


def begin_anew(state: State, members: list[Branch], run: Run) -> set[Run]:
    """Resets the first of `members` to its fork, and its descendants to before theirs.

    All their instructions are queued again; those of submissions that have ended count as `run`'s. Cancelled branches
    stay cancelled. Returns the affected submissions.
    """
    root = members[0]
    concerned: set[Run] = {run}
    again: list[tuple[Branch, list[Step | Barrier]]] = []
    entered = {loop for member in members for loop in member.inside[member.origin.num_loops :]}
    for member in members:
        concerned |= {entry.run for entry in _drop(member) if isinstance(entry, Step)}
        # A branch that is forked in a block is created again when that is entered again.
        given = member.origin.given if member.origin.scope == root.origin.scope else None
        failure = member.failure
        state.forget(member)
        if member is root:
            member.start_anew()
            state.recount(member)
        else:
            reset(state, member)
            member.origin.scope = NOT_YET if given is None else member.origin.scope
        if failure is not None and failure.error.code == CANCELLED:
            member.failure = failure
        member.origin.given = None if given is None else []
        member.turns = Counter(root.origin.turns.get(member.id))
        for name, loops in member.looping.items():
            member.looping[name] = [loop for loop in loops if loop not in entered]
        again.append((member, given or []))
    for member, entries in again:
        for entry in entries:
            give(member, _fresh(entry, run))
    return concerned


def _fresh(entry: Step | Barrier, run: Run) -> Step | Barrier:
    if isinstance(entry, Barrier):
        entry.passed = entry.failed = False
        return entry
    if (before := entry.run).over:
        run.tools = {**before.tools, **run.tools}
        return Step(run, entry.item, entry.barriers, known=False)
    return entry


def _drop(member: Branch) -> list[Step | Barrier]:
    """Empties the queue and returns its entries."""
    member.pending = None
    entries = list(member.queue)
    member.queue.clear()
    for entry in entries:
        if isinstance(entry, Step):
            entry.run.num_left -= 1
    return entries
