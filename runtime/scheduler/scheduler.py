"""Scheduling policy: chooses which tokens of which sequences the next forward pass computes.

There is no prefill phase and no decode phase. Each sequence has tokens and a count of computed ones; a step moves the
count. The scheduler is stateful but deterministic: it uses no clock, randomness, threads or tensors. Only it changes a
Sequence; other modules read.
"""

from __future__ import annotations

import heapq
import math
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from ...radix import EQUAL, Found, Lease, PrefixCache, Weights, tenant_of
from ..protocol.config import SchedulerLimits
from .tenants import Service, Waiting
from .token_tree import TreeLayout

BLOCK = 256
"""Number of tokens of two prompts compared at a time."""


@dataclass(eq=False, slots=True)
class Standing:
    """Standing of a sequence among those that wait.

    arrival      serial number of its arrival
    priority     lowest first, among the sequences of one tenant
    deadline     time at which it expires, by the clock of `Scheduler.schedule`
    passes       steps it has waited in all
    retractions  times it was put back to wait
    found        result of its last lookup in the prefix cache
    """

    arrival: int
    priority: int = 0
    deadline: float = math.inf
    passes: int = 0
    retractions: int = 0
    found: Found = field(default_factory=Found, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Scoring:
    """Request for the log-probabilities of the prompt's tokens from `start` on, in place of a generation.

    tree    layout of these tokens, if they form a tree and not a line
    """

    start: int
    tree: TreeLayout | None = None


@dataclass(eq=False, slots=True)
class Sequence:
    """Progress of a request. Only the scheduler changes it; other modules read.

    A step may be planned before the last one has been read, so planned and known tokens are counted separately:
    0 <= num_settled <= num_computed <= length, which `check` asserts at creation and after each change.

    tokens        prompt and generated token ids that are known
    num_prompt    how many of them are prompt
    limit         most prompt and generated tokens: no step is planned past it
    score         the log-probabilities that are asked for (None: this is a generation)
    drafts        proposed next tokens, to be computed and verified together with the last known one
    num_computed  tokens whose keys and values are in the pages of `lease`, or will be once the planned steps have run
    num_pending   tokens that planned steps draw and that have not been read yet; they follow `tokens`
    num_settled   tokens computed by steps that have been read: those that may be published in the cache
    blocked       no step can be planned: one with drafts, whose result decides how many tokens follow, has not been
                  read, or the sequence sits steps out (`defer`, `repeat_later`)
    epoch         counts the rewinds that made planned steps void (put back to wait, deferred, a token replaced, a
                  failed pass); the results of those steps are dropped
    num_cached    tokens found in the prefix cache when it was first admitted
    lease         its pages; None while it waits
    """

    id: str
    tokens: list[int]
    num_prompt: int
    standing: Standing
    namespace: str = ""
    limit: int = sys.maxsize
    score: Scoring | None = None
    drafts: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_pending: int = 0
    num_settled: int = 0
    blocked: bool = False
    epoch: int = 0
    num_cached: int | None = None
    lease: Lease | None = None

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Asserts the invariant of the counts."""
        assert 0 <= self.num_settled <= self.num_computed <= len(self.tokens) + self.num_pending, self

    @property
    def tenant(self) -> str:
        return tenant_of(self.namespace)

    @property
    def length(self) -> int:
        """Number of tokens, with those that planned steps draw and that are not known yet."""
        return len(self.tokens) + self.num_pending

    @property
    def num_uncomputed(self) -> int:
        return self.length - self.num_computed

    @property
    def ready(self) -> bool:
        """True if a further step can be planned now."""
        if self.score is not None:
            return self.num_computed < self.num_to_score
        return not self.blocked and self.length < self.limit

    @property
    def tree(self) -> TreeLayout | None:
        """Layout of the last tokens, if they form a tree."""
        return None if self.score is None else self.score.tree

    @property
    def num_to_score(self) -> int:
        """Tokens to compute for a score: all but the last one of a line, whose logits score no token."""
        return len(self.tokens) - (self.tree is None)

    @property
    def num_shareable(self) -> int:
        """Tokens that may be published in the cache: those before the tree branches."""
        tree = self.tree
        return len(self.tokens) if tree is None else tree.num_linear

    def rewind(self, num_computed: int) -> None:
        """Makes the planned steps void, and sets back the counts to `num_computed` tokens."""
        self.num_computed = num_computed
        self.num_settled = min(self.num_settled, num_computed)
        self.num_pending = 0
        self.blocked = False
        self.drafts = []
        self.epoch += 1
        self.check()

    @property
    def match_limit(self) -> int:
        """Most tokens that may come from the cache: a position whose logits are asked for must be computed."""
        return len(self.tokens) - 1 if self.score is None else self.score.start - 1


class Work(msgspec.Struct, frozen=True):
    """Positions start .. stop (half open) of `sequence` to compute, the last len(drafts) of which are `drafts`.

    Logits are wanted at positions logits_start .. logits_stop (half open): those at position i choose token i + 1. The
    work is void if the sequence has another `epoch` by now, or no lease.
    """

    sequence: Sequence
    start: int
    stop: int
    logits_start: int
    logits_stop: int
    drafts: tuple[int, ...] = ()
    epoch: int = 0

    @property
    def live(self) -> bool:
        return self.sequence.lease is not None and self.sequence.epoch == self.epoch

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens that count as prompt: all, or none if the work is the last token of the sequence and its drafts."""
        num_tokens = self.stop - self.start
        decodes = num_tokens - len(self.drafts) == 1 and self.logits_stop > self.logits_start
        return 0 if decodes else num_tokens

    @property
    def samples(self) -> bool:
        return self.sequence.score is None and self.logits_stop > self.logits_start


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: what to compute, and the sequences that were put back to wait or that have passed their deadline."""

    work: list[Work]
    retracted: list[Sequence]
    expired: list[Sequence]

    @property
    def num_tokens(self) -> int:
        return sum(work.num_tokens for work in self.work)


class Advance(msgspec.Struct, frozen=True):
    """Progress of one sequence in a step.

    tokens      accepted ones: first the drafts that were right, then one that was drawn
    finished    ends the sequence
    poisoned    ends it, publishes nothing that it computed, and flushes its tenant's part of the cache
    replaced    the last token is not the drawn one, so steps planned on that one are void
    """

    tokens: tuple[int, ...] = ()
    finished: bool = False
    poisoned: bool = False
    replaced: bool = False


class Scheduler:
    """Waiting and running sequences over one prefix cache.

    Order: running sequences first, those that decode before chunks of prompts, each oldest first, so that the oldest
    always ends; then waiting ones, from the tenant with the fewest seats. Within a tenant, sequences that have waited
    `max_passes` steps go first, by age; then the lowest `priority`, and within it those that were put back to wait,
    then the longest cached prefix.

    A waiting sequence whose prefix a running one is computing is held back until it can share that prefix
    (`_awaits_prefix`), unless it has waited `max_passes` steps. When pages run out, the youngest running sequence of
    the tenant with the most tokens is put back to wait; what it computed stays cached until it is evicted.

    A tenant with less than its share of seats or pages takes them from tenants with more, and the prompts of several
    tenants share the tokens of a step. The running sequence that arrived first is never put back for another one.
    Shares are in proportion to `weights`, by tenant; 1 if not given.

    `schedule` moves the counts as if its plan had run, so that a second plan can follow before the first is read;
    `apply` takes in the drawn tokens, in the order of the plans.
    """

    def __init__(self, cache: PrefixCache, limits: SchedulerLimits, weights: Weights = EQUAL) -> None:
        self.cache = cache
        self.limits = limits
        self.weights = weights
        self.running: list[Sequence] = []
        self.waiting: Waiting[Sequence] = Waiting()
        self.num_retractions = 0
        self._service = Service(limits.max_batch_tokens, weights)
        self._expire_at = math.inf  # no deadline is earlier

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting.lines

    @property
    def contested(self) -> bool:
        """True if more than one tenant runs or waits."""
        return len(self.waiting.lines.keys() | {sequence.tenant for sequence in self.running}) > 1

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence. It must fit into the pool on its own: the caller refuses larger ones."""
        assert len(sequence.tokens) > 0 and sequence.lease is None
        self.waiting.add(sequence)
        self._expire_at = min(self._expire_at, sequence.standing.deadline)

    def remove(self, sequence: Sequence) -> None:
        """Ends a running or waiting sequence, and publishes what the steps that were read have computed.

        Unknown sequences are ignored.
        """
        if sequence in self.running:
            self.running.remove(sequence)
            self._release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def schedule(self, now: float, prompt_tokens: int = sys.maxsize) -> Plan:
        """Plans the next step, with at most `prompt_tokens` tokens of prompts; decoding is bounded by the limits alone.

        Sequences whose deadline has passed by `now` are removed first.
        """
        expired = self._expire(now) if now >= self._expire_at else []
        retracted: list[Sequence] = []
        contested = self.contested
        ready = [sequence for sequence in self.running if sequence.ready]
        parts = self._parts(ready, prompt_tokens) if contested else None
        work = self._plan_running(ready, retracted, prompt_tokens, parts)
        if not retracted:
            self._admit(work, retracted, prompt_tokens, parts)
        for item in work:
            if num_tokens := item.num_prompt_tokens:
                self._service.charge(item.sequence.tenant, num_tokens)
        if contested:
            self._spend_rest(work, prompt_tokens)
        if self.waiting.lines:
            for sequence in self.waiting:
                sequence.standing.passes += 1
        for item in work:
            _launch(item)
        return Plan(work, retracted, expired)

    def repeat(self, plan: Plan, num_steps: int) -> list[Plan]:
        """Plans up to `num_steps` further steps of the same sequences, one token each, as far as pages last.

        All of `plan` must be decoding without drafts. No sequence goes past its limit.
        """
        sequences = [work.sequence for work in plan.work]
        room = min((sequence.limit - sequence.length for sequence in sequences), default=0)
        plans: list[Plan] = []
        while len(plans) < min(num_steps, room):
            if not all(s.lease is not None and self.cache.reserve(s.lease, s.length) for s in sequences):
                break
            works = [_work(sequence, 1) for sequence in sequences]
            for work in works:
                _launch(work)
            plans.append(Plan(works, [], []))
        return plans

    def apply(self, plan: Plan, advances: Iterable[Advance]) -> None:
        """Takes in the results of a step; `advances` are in the order of `plan.work`."""
        for work, advance in zip(plan.work, advances, strict=True):
            sequence = work.sequence
            if sequence.lease is None or not work.live:  # ended or put back while the step ran
                continue
            if advance.poisoned:
                self.running.remove(sequence)
                sequence.rewind(0)
                self._release(sequence)
                self.cache.flush(sequence.tenant)  # earlier chunks may be wrong too, and were published unseen
                continue
            sequence.tokens.extend(advance.tokens)
            if work.drafts:
                # Right drafts are computed already; the token that was drawn last never is.
                sequence.num_computed = len(sequence.tokens) - bool(advance.tokens)
                sequence.blocked = False
            elif work.samples:
                sequence.num_pending -= 1
            sequence.num_settled = min(work.stop, sequence.num_computed)
            sequence.check()
            if advance.replaced:  # before the release: a step in flight computes the drawn token, not to be published
                sequence.rewind(len(sequence.tokens) - 1)
            if advance.finished:
                self.running.remove(sequence)
                self._release(sequence)
                continue
            if work.start < sequence.num_prompt - 1:
                num_settled = min(sequence.num_settled, sequence.num_shareable)
                self.cache.commit(sequence.lease, sequence.tokens, num_settled)

    def propose(self, sequence: Sequence, drafts: list[int]) -> None:
        """Has the next step of `sequence` verify `drafts` along with its last token."""
        sequence.drafts = drafts

    def defer(self, sequence: Sequence) -> None:
        """Has `sequence`, all of whose tokens are computed, sit steps out until `resume`.

        Nothing may be drawn from its last token now, so that one is computed again afterwards.
        """
        sequence.rewind(len(sequence.tokens) - 1)
        sequence.blocked = True

    def resume(self, sequence: Sequence) -> None:
        """Lets a sequence be planned again after `defer` or `repeat_later`."""
        sequence.blocked = False

    def cancel(self, plan: Plan) -> None:
        """Takes the tokens of `plan`, which could not be launched, off `num_computed`; earlier steps may be unread.

        A sequence that ends in one of those must not publish what this step was to compute.
        """
        for work in plan.work:
            work.sequence.num_computed = min(work.sequence.num_computed, work.start)
            work.sequence.check()

    def take_back(self, plan: Plan) -> None:
        """Undoes `plan`, which ran out of memory, once all steps before it have been read. Its pages are kept."""
        for work in plan.work:
            if work.live:
                work.sequence.rewind(work.start)

    def replan(self, parts: Iterable[tuple[Sequence, int]]) -> Plan:
        """Plans parts of a step that was taken back: up to so many tokens each, of sequences that can still run."""
        work = [_work(sequence, size) for sequence, size in parts if sequence.lease is not None and sequence.ready]
        for item in work:
            _launch(item)
        return Plan(work, [], [])

    def repeat_later(self, work: Work) -> None:
        """Has the sequence of `work`, whose pass failed, sit steps out until `resume`; the work is repeated then."""
        if work.live:
            work.sequence.rewind(work.start)
            work.sequence.blocked = True

    def discard(self, plan: Plan) -> None:
        """Discards all that the sequences of `plan` have computed, since its pass failed: none of it is published."""
        for work in plan.work:
            work.sequence.rewind(0)

    def _expire(self, now: float) -> list[Sequence]:
        """Removes and returns the sequences whose deadline has passed."""
        expired = [s for s in (*self.running, *self.waiting) if now >= s.standing.deadline]
        for sequence in expired:
            self.remove(sequence)
        self._expire_at = min((s.standing.deadline for s in (*self.running, *self.waiting)), default=math.inf)
        return expired

    def _room(self, work: list[Work], prompt_tokens: int) -> int:
        """Returns how many tokens of prompts fit into a step beside `work`."""
        left = self.limits.max_batch_tokens - sum(item.num_tokens for item in work)
        return min(left, prompt_tokens - sum(item.num_prompt_tokens for item in work))

    def _plan_running(
        self, ready: list[Sequence], retracted: list[Sequence], prompt_tokens: int, parts: Counter[str] | None
    ) -> list[Work]:
        """Plans the running sequences: those that decode first, then chunks of prompts, both oldest first.

        Puts sequences back to wait while pages are short. `parts` holds the tokens of prompts that each tenant may
        still compute in this step (None: there is one tenant), and is reduced by those planned.
        """
        budget = self.limits.max_batch_tokens
        planned: dict[Sequence, Work] = {}
        num_decoding = sum(sequence.num_uncomputed <= 1 for sequence in ready)
        for index, sequence in enumerate(sorted(ready, key=lambda s: s.num_uncomputed > 1), start=1):
            room = budget
            if sequence.num_uncomputed > 1:
                room = min(room, prompt_tokens, room if parts is None else parts[sequence.tenant])
            if sequence.lease is None or room <= 0:
                continue
            # Drafts leave a token for each sequence that decodes after this one.
            work = _work(sequence, max(room - max(num_decoding - index, 0), 1))
            if work.drafts and not self.cache.reserve(sequence.lease, work.stop):  # none is put back for drafts
                sequence.drafts = []
                work = _work(sequence, room)
            while not self._reserve(sequence, sequence.lease, work.stop):
                victim = self._largest()
                self._retract(victim, retracted)
                if (taken := planned.pop(victim, None)) is not None:
                    budget += taken.num_tokens
                    prompt_tokens += taken.num_prompt_tokens
                if victim is sequence:
                    break
            else:
                planned[sequence] = work
                budget -= work.num_tokens
                prompt_tokens -= work.num_prompt_tokens
                if parts is not None and work.num_prompt_tokens:
                    parts[sequence.tenant] -= work.num_prompt_tokens
        return [planned[sequence] for sequence in self.running if sequence in planned]

    def _parts(self, ready: list[Sequence], prompt_tokens: int) -> Counter[str]:
        """Divides the tokens of prompts in this step among the tenants that have prompts running or waiting."""
        prompts = [sequence for sequence in ready if sequence.num_uncomputed > 1]
        wanted: Counter[str] = Counter()
        for sequence in prompts:
            wanted[sequence.tenant] += sequence.num_uncomputed
        for tenant, line in self.waiting.lines.items():
            wanted[tenant] += sum(len(sequence.tokens) for sequence in islice(line, self.limits.max_num_seqs))
        budget = min(self.limits.max_batch_tokens - (len(ready) - len(prompts)), prompt_tokens)
        parts = Counter(self._service.divide(max(budget, 0), wanted))
        if prompts:
            # With more tenants than tokens some get none. The oldest continues all the same, lest all wait for others.
            parts[prompts[0].tenant] = max(parts[prompts[0].tenant], 1)
        return parts

    def _admit(
        self, work: list[Work], retracted: list[Sequence], prompt_tokens: int, parts: Counter[str] | None
    ) -> None:
        """Moves waiting sequences to running, and their first work to `work`, while tokens, seats and pages last.

        A sequence that is held back for a prefix is passed over, unless it is overdue. Where seats or pages are short,
        a running sequence of a tenant with a larger share gives way (`_over_share`).
        """
        budget = self._room(work, prompt_tokens)
        if not self.waiting.lines or budget <= 0:
            return
        if self._full and (parts is None or not self._gives_a_seat()):
            return
        computing = [item.sequence for item in work if item.sequence.num_settled < item.sequence.num_prompt - 1]
        for sequence in self._order():
            if budget <= 0:
                return
            if not self._overdue(sequence) and self._awaits_prefix(sequence, computing):
                continue
            if self._full:
                victim = self._over_share(sequence, of_seats=True)
                if victim is None:
                    return
                self._make_way(victim, work, retracted)
                budget = self._room(work, prompt_tokens)
            lease = self.cache.open(sequence.tokens, sequence.namespace, limit=sequence.match_limit)
            # The whole prompt is reserved at once, so that a sequence never lacks pages halfway through it.
            while not self._reserve(sequence, lease, len(sequence.tokens)):
                victim = self._over_share(sequence, of_seats=False) if parts is not None else None
                if victim is None:
                    self.cache.close(lease, sequence.tokens, 0)
                    return
                self._make_way(victim, work, retracted)
                budget = self._room(work, prompt_tokens)
            computing = [other for other in computing if other.lease is not None]
            self.waiting.remove(sequence)
            self.running.append(sequence)
            sequence.lease = lease
            sequence.num_computed = sequence.num_settled = lease.num_cached
            sequence.check()
            if sequence.num_cached is None:
                sequence.num_cached = lease.num_cached
            # A tenant whose tokens are used up starts with one all the same, and gets more of those left over.
            item = _work(sequence, budget if parts is None else min(budget, max(parts[sequence.tenant], 1)))
            work.append(item)
            budget -= item.num_tokens
            if parts is not None:
                parts[sequence.tenant] -= item.num_tokens
            if sequence.num_uncomputed > 1:
                computing.append(sequence)

    def _reserve(self, sequence: Sequence, lease: Lease, num_tokens: int) -> bool:
        """Reserves pages; returns False if they cannot be had.

        Only the first running sequence of each tenant, which must be able to end, may evict what others have cached
        within their share.
        """
        if self.cache.reserve(lease, num_tokens, spare=True):
            return True
        first = next((other for other in self.running if other.tenant == sequence.tenant), sequence)
        return first is sequence and self.cache.reserve(lease, num_tokens)

    def _make_way(self, victim: Sequence, work: list[Work], retracted: list[Sequence]) -> None:
        """Puts a running sequence back to wait and removes it from `work`."""
        self._retract(victim, retracted)
        work[:] = [item for item in work if item.sequence is not victim]

    def _spend_rest(self, work: list[Work], prompt_tokens: int) -> None:
        """Divides the tokens that are left in a step among the chunks of prompts in `work`."""
        wanted: Counter[str] = Counter()
        for item in work:
            wanted[item.sequence.tenant] += max(item.sequence.length - item.stop, 0)
        parts = self._service.divide(max(self._room(work, prompt_tokens), 0), wanted)
        for index, item in enumerate(work):
            tenant, lease = item.sequence.tenant, item.sequence.lease
            if item.stop < item.sequence.length and parts[tenant] > 0 and lease is not None:
                longer = _work(item.sequence, item.num_tokens + parts[tenant])
                if self.cache.reserve(lease, longer.stop):
                    parts[tenant] -= longer.num_tokens - item.num_tokens
                    self._service.charge(tenant, longer.num_tokens - item.num_tokens)
                    work[index] = longer

    @property
    def _full(self) -> bool:
        return len(self.running) >= self.limits.max_num_seqs

    def _order(self) -> Iterator[Sequence]:
        """Yields waiting sequences in order; the caller decides about each before it takes the next.

        Only `window` of them are ordered, as many of each tenant as its weight gives it but at least one, so that the
        cost of a step is bounded.
        """
        lines = {tenant: list(line) for tenant, line in self.waiting.lines.items()}  # not those put back meanwhile
        seats = Counter(sequence.tenant for sequence in self.running)
        part = self.limits.window / sum(self.weights.get(tenant, 1) for tenant in lines)
        heap = [
            (self._share(tenant, seats[tenant]), line[0].standing.arrival, tenant) for tenant, line in lines.items()
        ]
        heapq.heapify(heap)
        ordered: dict[str, deque[Sequence]] = {}
        while heap:
            _, _, tenant = heapq.heappop(heap)
            if tenant not in ordered:
                window = max(int(part * self.weights.get(tenant, 1)), 1)
                ordered[tenant] = deque(self._line(lines[tenant], window))
            line = ordered[tenant]
            sequence = line.popleft()
            yield sequence
            if line:
                seats[tenant] += sequence.lease is not None
                heapq.heappush(heap, (self._share(tenant, seats[tenant]), line[0].standing.arrival, tenant))

    def _line(self, waiting: list[Sequence], window: int) -> list[Sequence]:
        """Returns the first `window` waiting sequences of a tenant: the overdue by age, then the others by priority.

        Within a priority come those that were put back to wait, by age, then those with the longest cached prefix.
        """

        def by_age(sequence: Sequence) -> tuple[bool, int, int]:
            standing, overdue = sequence.standing, self._overdue(sequence)
            return (not overdue, 0 if overdue else standing.priority, standing.arrival)

        def by_prefix(sequence: Sequence) -> tuple[bool, int, bool, int, int]:
            standing, overdue = sequence.standing, self._overdue(sequence)
            if overdue or standing.retractions:
                return (not overdue, 0 if overdue else standing.priority, False, 0, standing.arrival)
            cached = self._cached(sequence)
            return (True, standing.priority, True, -cached, standing.arrival)

        first = sorted(waiting, key=by_age)[:window]
        return first if len(first) == 1 else sorted(first, key=by_prefix)

    def _cached(self, sequence: Sequence) -> int:
        return self.cache.cached_tokens(sequence.tokens, sequence.namespace, found=sequence.standing.found)

    def _overdue(self, sequence: Sequence) -> bool:
        return sequence.standing.passes >= self.limits.max_passes

    def _share(self, tenant: str, used: int) -> float:
        """Returns seats or tokens for each unit of a tenant's weight."""
        return used / self.weights.get(tenant, 1)

    def _largest(self) -> Sequence:
        """Returns the sequence to put back for want of pages: the youngest of the tenant with the most tokens."""
        used = self._used(of_seats=False)
        if len(used) == 1:
            return self.running[-1]
        found = self._youngest(max(used, key=lambda name: self._share(name, used[name]))) or self._youngest(None)
        assert found is not None
        return found

    def _over_share(self, newcomer: Sequence, *, of_seats: bool) -> Sequence | None:
        """Returns the running sequence to put back for `newcomer`, of seats or of tokens.

        None if its tenant would then have a smaller share than the newcomer's, so that no two sequences ever put each
        other back in turn.
        """
        used = self._used(of_seats=of_seats)
        tenant, others = newcomer.tenant, [name for name in used if name != newcomer.tenant]
        largest = max(others, key=lambda name: self._share(name, used[name]), default=None)
        victim = None if largest is None else self._youngest(largest)
        if largest is None or victim is None:
            return None
        less, more = (1, 1) if of_seats else (victim.length, newcomer.length)
        after = self._share(largest, used[largest] - less), self._share(tenant, used[tenant] + more)
        return victim if after[0] >= after[1] else None

    def _gives_a_seat(self) -> bool:
        """True if a running sequence is to be put back for a waiting one.

        Only the tenant that would have the smallest share of the seats need be tried: if it gets none, no other does.
        """
        seats = self._used(of_seats=True)
        least = min(self.waiting.lines, key=lambda name: self._share(name, seats[name] + 1))
        return self._over_share(next(iter(self.waiting.lines[least])), of_seats=True) is not None

    def _used(self, *, of_seats: bool) -> Counter[str]:
        """Returns the seats, or the tokens, of each tenant's running sequences."""
        used: Counter[str] = Counter()
        for sequence in self.running:
            used[sequence.tenant] += 1 if of_seats else sequence.length
        return used

    def _youngest(self, tenant: str | None) -> Sequence | None:
        """Returns the sequence admitted last, of a tenant or (None) of all, but never the one that arrived first."""
        first = min(self.running, key=lambda s: s.standing.arrival)
        return next((s for s in reversed(self.running) if tenant in (None, s.tenant) and s is not first), None)

    def _awaits_prefix(self, sequence: Sequence, computing: list[Sequence]) -> bool:
        """True if a sequence in `computing` shares at least `limits.hold_back` tokens more than the cache does.

        So the children of a fork, which arrive in one step, share what the first of them computes.
        """
        tokens, hold_back, cached = sequence.tokens, self.limits.hold_back, -1
        for other in computing:
            if other.namespace != sequence.namespace or other.tokens[0] != tokens[0]:
                continue
            most = min(other.num_prompt, other.num_shareable, sequence.match_limit)
            if most < hold_back or not _agree(other.tokens, tokens, 0, hold_back):
                continue
            if cached < 0:
                cached = self._cached(sequence)
            stop = cached + hold_back
            # The last tokens first: before them is what may be long.
            if most < stop or not _agree(other.tokens, tokens, max(cached, hold_back), stop):
                continue
            if _agree(other.tokens, tokens, hold_back, cached):
                return True
        return False

    def _retract(self, sequence: Sequence, retracted: list[Sequence]) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        sequence.rewind(0)
        sequence.standing.retractions += 1
        self.num_retractions += 1
        self.waiting.add(sequence)
        retracted.append(sequence)

    def _release(self, sequence: Sequence) -> None:
        assert sequence.lease is not None
        # Only what is settled: planned work may never be launched, and a pass in flight may fail.
        self.cache.close(sequence.lease, sequence.tokens, min(sequence.num_settled, sequence.num_shareable))
        sequence.lease = None


def _work(sequence: Sequence, budget: int) -> Work:
    """Returns the next work of a sequence, of at most `budget` tokens; drafts come only with its last known token."""
    start, end, epoch = sequence.num_computed, sequence.length, sequence.epoch
    if sequence.score is not None:
        stop = min(sequence.num_to_score, start + budget)
        return Work(sequence, start, stop, min(max(start, sequence.score.start - 1), stop), stop, (), epoch)
    stop = min(end, start + budget)
    if stop < end:
        return Work(sequence, start, stop, stop, stop, (), epoch)
    drafts = tuple(sequence.drafts[: max(budget - (stop - start), 0)])
    stop += len(drafts)
    return Work(sequence, start, stop, end - 1, stop, drafts, epoch)


def _launch(work: Work) -> None:
    """Moves the counts of `work.sequence` as if it had run; with drafts, blocks the sequence until that is read."""
    sequence = work.sequence
    sequence.drafts = []
    if work.drafts:
        sequence.blocked = True
        return
    sequence.num_computed = work.stop
    sequence.num_pending += work.samples
    sequence.check()


def _agree(a: list[int], b: list[int], start: int, stop: int) -> bool:
    """True if both hold the same tokens from `start` to `stop` (half open). Copies BLOCK tokens at a time."""
    bounds = ((first, min(first + BLOCK, stop)) for first in range(start, stop, BLOCK))
    return all(a[first:last] == b[first:last] for first, last in bounds)
