"""Schedulers, pools, caches and executors with one planted bug each, most of kinds that serving engines have had.

The simulation must find them all. Those of the radix tree are `tests/radix/mutants.py`.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from bough.radix import PagePool, PrefixCache, Weights
from bough.radix.tenants import Holding
from bough.radix.tree import RadixTree
from bough.runtime.programs.engine_machine import EngineMachine
from bough.runtime.programs.executor import Executor
from bough.runtime.programs.state import Run, State
from bough.runtime.programs.tokens import TokenContent
from bough.runtime.scheduler.scheduler import Advance, Plan, Scheduler, Sequence, Work

from ..radix.mutants import MUTANTS as CACHE_MUTANTS
from ..radix.mutants import TreeMutant
from .engine_world import EngineWorld
from .scheduler_world import SchedulerWorld
from .simulate import Draw, MakeWorld

# The pool and the accounts of tenants


class LosesAPagePool(PagePool):
    """The last page of a run that is given back is forgotten."""

    def free(self, pages: array[int]) -> None:
        super().free(pages[:-1] if len(pages) > 2 else pages)


class HandsOutTwicePool(PagePool):
    """A page that is handed out stays in the pool."""

    def allocate(self, count: int) -> array[int]:
        pages = super().allocate(count)
        if count > 2:
            self.free_pages.append(pages[0])
        return pages


class PoolLosesAPage(PrefixCache):
    def __init__(self, num_pages: int, page_size: int, *, sharing: bool = True, weights: Weights) -> None:
        super().__init__(num_pages, page_size, sharing=sharing, weights=weights)
        self.pool = LosesAPagePool(num_pages)


class PoolHandsOutTwice(PrefixCache):
    def __init__(self, num_pages: int, page_size: int, *, sharing: bool = True, weights: Weights) -> None:
        super().__init__(num_pages, page_size, sharing=sharing, weights=weights)
        self.pool = HandsOutTwicePool(num_pages)


class MiscountsEvictedTree(RadixTree):
    """Pages that a tenant gives up are not taken off its account."""

    def _evict_from(self, holding: Holding, num_pages: int) -> array[int]:
        evicted = super()._evict_from(holding, num_pages)
        holding.num_cached += len(evicted)
        return evicted


class MiscountsEvicted(TreeMutant):
    tree_type = MiscountsEvictedTree


# The scheduler


class PublishesWhatIsPlanned(Scheduler):
    """A sequence that ends publishes what steps compute that nobody has read, or launched."""

    def _release(self, sequence: Sequence) -> None:
        sequence.num_settled = min(sequence.num_computed, len(sequence.tokens))
        super()._release(sequence)


class RetractionKeepsEpoch(Scheduler):
    """Results of steps before a retraction count afterwards."""

    def _retract(self, sequence: Sequence, retracted: list[Sequence]) -> None:
        super()._retract(sequence, retracted)
        sequence.epoch -= 1


class DeferralKeepsResults(Scheduler):
    """A token that is drawn without a mask counts."""

    def defer(self, sequence: Sequence) -> None:
        sequence.blocked = True


class NeverResumes(Scheduler):
    """A sequence that has sat a step out sits out all others."""

    def resume(self, sequence: Sequence) -> None:
        pass


class FailuresAreShared(Scheduler):
    """Keys and values of a pass that failed are published."""

    def discard(self, plan: Plan) -> None:
        for work in plan.work:
            if work.live:
                work.sequence.num_settled = min(work.sequence.num_computed, len(work.sequence.tokens))


class PriorityStarves(Scheduler):
    """The urgent always go first."""

    def _overdue(self, sequence: Sequence) -> bool:
        return False


class WindowHidesOverdue(Scheduler):
    """A sequence that has waited long goes first, unless there are enough of the urgent."""

    def _line(self, waiting: list[Sequence], window: int) -> list[Sequence]:
        urgent = sorted(waiting, key=lambda s: (s.standing.priority, s.standing.arrival))
        return super()._line(urgent[:window], window)


class SpendsTheRestTwice(Scheduler):
    """Tokens that are left in a step are given to each prompt."""

    def _spend_rest(self, work: list[Work], prompt_tokens: int) -> None:
        for index in range(len(work)):
            one = [work[index]]
            super()._spend_rest(one, prompt_tokens)
            work[index] = one[0]


class ForgetsSeats(Scheduler):
    """The bound on what runs is not kept."""

    @property
    def _full(self) -> bool:
        return False


class PartsOfNothing(Scheduler):
    """With more tenants than tokens the prompts wait for each other."""

    def _parts(self, ready: list[Sequence], prompt_tokens: int) -> Counter[str]:
        parts = super()._parts(ready, prompt_tokens)
        return Counter({tenant: part for tenant, part in parts.items() if part > 1})


class ForgetsWeights(Scheduler):
    """All keys are equal."""

    def _share(self, tenant: str, used: int) -> float:
        return float(used)


class ReversesShares(Scheduler):
    """The key with the most seats goes next, and takes more."""

    def _share(self, tenant: str, used: int) -> float:
        return -float(used)


class MiscountsWaiting(Scheduler):
    """A tenant whose last sequence leaves the queue still has a line in it."""

    def schedule(self, now: float, prompt_tokens: int = sys.maxsize) -> Plan:
        tenants = list(self.waiting.lines)
        plan = super().schedule(now, prompt_tokens)
        for tenant in tenants:
            self.waiting.lines.setdefault(tenant, {})
        return plan


class ForgetsToUnqueue(Scheduler):
    """A sequence that ends while it waits goes on waiting."""

    def remove(self, sequence: Sequence) -> None:
        if sequence in self.running:
            super().remove(sequence)


class ForgetsDeadlines(Scheduler):
    """No time is ever over."""

    def schedule(self, now: float, prompt_tokens: int = sys.maxsize) -> Plan:
        return super().schedule(-math.inf, prompt_tokens)


def _keep_all(tenant: str | None = None) -> int:
    return 0


class PoisonStays(Scheduler):
    """Pages shared before anyone saw that they are not finite are kept."""

    def apply(self, plan: Plan, advances: Iterable[Advance]) -> None:
        flush, self.cache.flush = self.cache.flush, _keep_all  # type: ignore[method-assign]
        super().apply(plan, advances)
        self.cache.flush = flush  # type: ignore[method-assign]


class KeepsWhatWasReplaced(Scheduler):
    """Keys and values of a token that was drawn stand for those of the one that took its place."""

    def apply(self, plan: Plan, advances: Iterable[Advance]) -> None:
        super().apply(plan, [msgspec.structs.replace(advance, replaced=False) for advance in advances])


class AdmitsWithoutPages(Scheduler):
    """A prompt is admitted with the pages of all but its last token."""

    def _reserve(self, sequence: Sequence, lease: object, num_tokens: int) -> bool:
        short = num_tokens - 1 if sequence.lease is None and num_tokens > 1 else num_tokens
        return super()._reserve(sequence, lease, short)  # type: ignore[arg-type]


# Programs, and the engine around them


class DropsLeaveRequests(Executor):
    """Calls that branches wait for go on when these end."""

    def __init__(self, machine: EngineMachine, clock: Callable[[], float], **options: Any) -> None:
        super().__init__(machine, clock, **options)
        self._interpreter.stop = lambda branches: None  # type: ignore[method-assign]


class StatesOutliveTheirEnd(Executor):
    """States are kept whether or not anyone asked for it."""

    def _finish(self, state: State, run: Run) -> None:
        super()._finish(state, run)
        self._states[state.id] = state


class StatesPileUp(Executor):
    """However many are kept."""

    def _trim(self, now: float) -> None:
        pass


class ForgetfulContent(TokenContent):
    def fork(self) -> TokenContent:
        child = super().fork()
        child.tokens.cut(len(child.tokens) - 1)
        return ForgetfulContent(**{field.name: getattr(child, field.name) for field in dataclasses.fields(child)})


class ForksForget(Executor):
    """A child begins without its parent's last token."""

    def __init__(self, machine: EngineMachine, clock: Callable[[], float], **options: Any) -> None:
        super().__init__(machine, clock, **options)
        machine.blank = ForgetfulContent  # type: ignore[method-assign]


class ForgetsWhoHasEnded(Executor):
    """The requests of a key are counted for ever."""

    def __init__(self, machine: EngineMachine, clock: Callable[[], float], **options: Any) -> None:
        super().__init__(machine, clock, **options)
        machine._engine._admission.drop = lambda generation: None  # type: ignore[method-assign]


PROGRAM_MUTANTS = (
    DropsLeaveRequests,
    StatesOutliveTheirEnd,
    StatesPileUp,
    ForksForget,
    ForgetsWhoHasEnded,
)

SCHEDULER_MUTANTS: tuple[type[Scheduler], ...] = (
    PublishesWhatIsPlanned,
    RetractionKeepsEpoch,
    DeferralKeepsResults,
    NeverResumes,
    FailuresAreShared,
    PriorityStarves,
    WindowHidesOverdue,
    SpendsTheRestTwice,
    ForgetsSeats,
    PartsOfNothing,
    ForgetsWeights,
    ReversesShares,
    MiscountsWaiting,
    ForgetsToUnqueue,
    ForgetsDeadlines,
    PoisonStays,
    KeepsWhatWasReplaced,
    AdmitsWithoutPages,
)

MUTANTS: dict[str, tuple[MakeWorld, Draw]] = {
    **{
        cache.__name__: (partial(SchedulerWorld, make_cache=cache), SchedulerWorld.draw)
        for cache in (*CACHE_MUTANTS, PoolLosesAPage, PoolHandsOutTwice, MiscountsEvicted)
    },
    **{
        scheduler.__name__: (partial(SchedulerWorld, make_scheduler=scheduler), SchedulerWorld.draw)
        for scheduler in SCHEDULER_MUTANTS
    },
    **{
        executor.__name__: (partial(EngineWorld, make_executor=executor), EngineWorld.draw)
        for executor in PROGRAM_MUTANTS
    },
}
"""By name, worlds that have one, and what draws their operations."""
