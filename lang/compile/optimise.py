"""Optimises a compiled program without changing any token: drops unused values, and defers what can wait."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from msgspec.structs import replace

from ...runtime.protocol.condition import Ref
from ...runtime.protocol.program import (
    Assign,
    CallTools,
    Cancel,
    Fork,
    Gen,
    Join,
    Op,
    RoleBegin,
    RoleEnd,
    Select,
    Text,
    Use,
    walk,
)
from ...runtime.templates.rewrite import refs_in

Ops = tuple[Op, ...]


def optimise(ops: Ops, wanted: Collection[Ref], passes: Collection[str] | None = None) -> Ops:
    """The same program for less: its values named in `wanted` and its uses of tools are what they were.

    unread      branches and instructions that nothing wanted depends on are dropped
    overlap     a join waits only where its branches' values are needed, so that what follows runs beside them
    prefixes    what all branches of a fork begin with is appended once, before they part

    Tokens do not change: text is cut nowhere and joined nowhere, so that it is tokenised as before. What is dropped
    can no longer fail.
    """
    chosen = PASSES if passes is None else {name: PASSES[name] for name in PASSES if name in passes}
    for change in chosen.values():
        ops = change(ops, wanted)
    return ops


def drop_unread(ops: Ops, wanted: Collection[Ref]) -> Ops:
    """Without what no wanted value and no tool depends on.

    A branch is needed up to the last instruction that is; all before it is the context of that one.
    """
    ends = _needed(ops, wanted)
    seen: dict[int, int] = {}
    kept: list[Op] = []
    for op in ops:
        index = seen.get(op.branch, 0)
        seen[op.branch] = index + 1
        if isinstance(op, Join):
            children = tuple(child for child in op.children if child in ends)
            if children and (op.mode == "gather" or index < ends.get(op.branch, 0)):
                kept.append(replace(op, children=children))
        elif index < ends.get(op.branch, 0):
            kept.append(_without(op, ends) if isinstance(op, Fork) else op)
    return tuple(op for op in kept if not (isinstance(op, Fork) and not op.children))


def _without(fork: Fork, ends: Mapping[int, int]) -> Fork:
    return replace(fork, children=tuple(child for child in fork.children if child in ends))


def _needed(ops: Ops, wanted: Collection[Ref]) -> dict[int, int]:
    """Returns how many of each branch's instructions are needed, without the branches that need none."""
    lists: dict[int, list[Op]] = {}
    forked_at: dict[int, tuple[int, int]] = {}
    made_at: dict[Ref, list[tuple[int, int]]] = {}
    ends: dict[int, int] = {}
    todo: list[tuple[int, int]] = []
    for op in ops:
        own = lists.setdefault(op.branch, [])
        own.append(op)
        here = (op.branch, len(own))
        inner = list(walk([op]))
        if isinstance(op, Fork):
            forked_at |= dict.fromkeys(op.children, here)
        for ref in _made(inner):
            made_at.setdefault(ref, []).append(here)
        if any(isinstance(part, Use | CallTools | Cancel) for part in inner):
            todo.append(here)
    for ref in wanted:
        todo += made_at.get(ref, [])
    while todo:
        branch, end = todo.pop()
        start = ends.get(branch, 0)
        if end <= start:
            continue
        ends[branch] = end
        if branch in forked_at:
            todo.append(forked_at[branch])
        for op in lists[branch][start:end]:
            for part in walk([op]):
                for ref in refs_in(part):
                    todo += made_at.get(ref, [])
                if isinstance(part, Join) and part.mode == "append":
                    todo += ((child, len(lists[child])) for child in part.children if child in lists)
    return ends


def _made(ops: Iterable[Op]) -> Iterator[Ref]:
    for op in ops:
        if isinstance(op, Gen | Select | Use | CallTools | Assign):
            yield Ref(op.branch, op.name)


def sink_joins(ops: Ops, wanted: Collection[Ref]) -> Ops:
    """With joins that only gather at the very end: references wait for the values that they need by themselves."""
    joins = tuple(op for op in ops if isinstance(op, Join) and op.mode == "gather")
    return tuple(op for op in ops if op not in joins) + joins


def hoist_prefixes(ops: Ops, wanted: Collection[Ref]) -> Ops:
    """With what all branches of a fork begin with in a branch of its own, from which they are then forked.

    Whole instructions only: cutting a text would tokenise it in another way. Branches that are appended to their parent
    stay as they are, since what they begin with is part of that.
    """
    free = max((child for op in walk(ops) if isinstance(op, Fork) for child in op.children), default=0) + 1
    appended = {child for op in walk(ops) if isinstance(op, Join) and op.mode == "append" for child in op.children}
    done: set[int] = set()
    while True:
        fork = next((op for op in ops if isinstance(op, Fork) and op.children[0] not in done), None)
        if fork is None:
            return ops
        done.add(fork.children[0])
        hoisted = () if fork.isolated or appended.intersection(fork.children) else _common(ops, fork.children)
        if not hoisted:
            continue
        start = ops.index(fork)
        before, after = ops[:start], list(ops[start + 1 :])
        for child in fork.children:
            for op in hoisted:
                after.remove(replace(op, branch=child))
        shared = (replace(fork, children=(free,)), *(replace(op, branch=free) for op in hoisted))
        ops = (*before, *shared, replace(fork, branch=free), *after)
        done.add(free)
        free += 1


def _common(ops: Ops, children: tuple[int, ...]) -> Ops:
    """The first instructions of all `children`, as far as they append the same."""
    lists = [[op for op in ops if op.branch == child] for child in children]
    found: list[Op] = []
    for first, *others in zip(*lists, strict=False):
        same = all(replace(op, branch=first.branch) == first for op in others)
        if not others or not same or not isinstance(first, Text | RoleBegin | RoleEnd):
            break
        if any(ref.branch in children for ref in refs_in(first)):
            break
        found.append(first)
    healed = any(_heals(own[len(found)]) for own in lists if len(own) > len(found))
    return tuple(found[:-1] if found and isinstance(found[-1], Text) and healed else found)


def _heals(op: Op) -> bool:
    """Tells whether it takes back tokens of the text before it, which must be in its own branch."""
    return isinstance(op, Gen) and op.sampling.token_healing


PASSES: Mapping[str, Callable[[Ops, Collection[Ref]], Ops]] = {
    "unread": drop_unread,
    "overlap": sink_joins,
    "prefixes": hoist_prefixes,
}
"""In the order in which they are applied."""
