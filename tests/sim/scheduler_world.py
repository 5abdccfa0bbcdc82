"""The production scheduler, radix tree and page pool under a nemesis, with everything recounted.

The loop around them does what `Engine.step` does, through the same port: plans are launched before the one before is
read, masks that are late are deferred and resumed, passes fail, and who hears of an end may end others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from bough.radix import Lease, PrefixCache, tenant_of
from bough.runtime.protocol.config import SchedulerLimits
from bough.runtime.scheduler.scheduler import Advance, Plan, Scheduler, Scoring, Sequence, Standing, Work

from ..support.fakes import root
from .hash_device import NAN, VOCABULARY, HashDevice, follow, next_token
from .operations import Dice, Operation, draw

MAX_LIVE = 12
NAMESPACES = ("", "a", "b", "a/salt", "c")
ABORT_POINTS = (
    "unqueued", "waiting", "retracted", "planned", "prefilling", "decoding", "drafting", "deferred", "scoring",
    "unread", "heard", "ended",
)  # fmt: skip
"""Moments of a request's life: constraint not compiled; never admitted; put back to wait; planned and not launched; in
a chunk of its prompt; between two tokens; with drafts in flight; mask late; prompt scored; pass not read; in the event
of another that has ended; over."""

MIX = {
    "step": 60, "arrive": 14, "burst": 1, "fork": 1.5, "abort": 4, "compile": 4, "resume": 3,
    "abort_heard": 0.7, "abort_planned": 0.7, "late": 2, "lag": 1, "storm": 0.5, "fail_launch": 0.3, "fail_read": 0.3,
    "jump": 0.3, "evict_all": 0.5, "split_all": 0.5, "pair": 1.0,
}  # fmt: skip
FAULTS = tuple(name for name in MIX if name not in ("step", "arrive", "compile", "resume"))

MakeCache = Callable[..., PrefixCache]
MakeScheduler = Callable[..., Scheduler]


@dataclass(eq=False, slots=True)
class Job:
    """One request. `contents` is what the slots of its tokens must hold, from the tokens alone.

    constrained   its masks may be late
    twists        generated tokens, by number, that are another than was drawn
    terminal      events that ended it: exactly one in the end
    """

    sequence: Sequence
    constrained: bool
    twists: frozenset[int]
    contents: list[int] = field(default_factory=list)
    terminal: list[str] = field(default_factory=list)

    def learn(self, nan_every: int | None) -> None:
        """Follows the tokens that have come."""
        contents, tokens = self.contents, self.sequence.tokens
        content = contents[-1] if contents else root(self.sequence.namespace)
        for token in tokens[len(contents) :]:
            content = follow(content, token, nan_every)
            contents.append(content)


@dataclass(eq=False, slots=True)
class Flight:
    """Plans that were launched, with what the device found, and nobody has read yet."""

    plans: list[Plan]
    found: list[list[list[int]]]
    fails: bool = False


@dataclass(eq=False, slots=True)
class Strikes:
    """Faults of the next step."""

    abort_heard: int | None = None
    abort_planned: int | None = None
    late: int = 0
    fails_launch: bool = False
    fails_read: bool = False


class SchedulerWorld:
    """One episode: a pool, keys and limits that are drawn from `seed`."""

    def __init__(
        self, seed: int, make_cache: MakeCache = PrefixCache, make_scheduler: MakeScheduler = Scheduler
    ) -> None:
        random = Random(seed)
        self.counts: Counter[str] = Counter()
        self.page_size = random.choice((1, 2, 4, 16))
        self.num_pages = random.choice((random.randint(3, 8), random.randint(8, 24), random.randint(24, 64)))
        self.limits = SchedulerLimits(
            max_num_seqs=random.randint(1, 8),
            max_batch_tokens=random.choice((1, 2, 8, 24, 64)),
            max_passes=random.choice((2, 8, 64)),
            hold_back=random.choice((2, 16)),
            window=random.choice((2, 4, 256)),
        )
        self.namespaces = NAMESPACES[: random.randint(1, len(NAMESPACES))]
        weights = {name: random.choice((1, 1, 2, 5)) for name in "abc"}
        self.cache = make_cache(self.num_pages, self.page_size, sharing=random.random() < 0.95, weights=weights)
        self.scheduler = make_scheduler(self.cache, self.limits, weights)
        self.weights = weights
        nan_every = random.choice((None, 100))
        self.device = HashDevice(self.num_pages, self.page_size, nan_every)
        self.drafts = random.random() < 0.5
        self.overlaps = random.random() < 0.7
        self.num_ahead = random.choice((1, 1, 4))
        self.plain = False  # neither stops, nor drafts, nor late masks
        self.now = 0.0
        self.num_arrived = 0
        self.jobs: dict[str, Job] = {}
        self.compiling: dict[str, Job] = {}
        self.deferred: dict[Job, bool] = {}
        self.history: list[Sequence] = []
        self.flight: Flight | None = None
        self.strikes = Strikes()
        self.served: Counter[str] = Counter()

    @staticmethod
    def draw(seed: int, num_operations: int) -> list[Operation]:
        """The operations of an episode: always some faults, never all, so that each is seen without the others."""
        random = Random(~seed)
        enabled = set(random.sample(FAULTS, random.randint(2, len(FAULTS))))
        rarity = random.choice((0.5, 1.0, 3.0))
        mix = {name: share * (rarity if name in FAULTS else 1.0) for name, share in MIX.items()}
        return draw(
            random,
            {name: share for name, share in mix.items() if name not in FAULTS or name in enabled},
            num_operations,
        )

    def do(self, operation: Operation) -> None:
        name, bits = operation
        self.counts[name] += 1
        getattr(self, "do_" + name)(Dice(bits))

    # Operations

    def do_arrive(self, dice: Dice) -> None:
        """A request, which begins as an earlier one did in most cases."""
        if len(self.jobs) >= MAX_LIVE:
            return
        namespace = dice.pick(self.namespaces)
        prompt = [dice.below(VOCABULARY) for _ in range(1 + dice.below(24))]
        if self.history and not dice.one_in(3):
            earlier = dice.pick(self.history)
            namespace = namespace if dice.one_in(5) else earlier.namespace
            prompt = earlier.tokens[: 1 + dice.below(len(earlier.tokens))] + prompt[: dice.below(8)]
        self._add(dice, namespace, prompt)

    def do_burst(self, dice: Dice) -> None:
        """Long answers of one key, which take all pages."""
        namespace = dice.pick(self.namespaces)
        for number in range(4):
            if len(self.jobs) < MAX_LIVE:
                self._add(dice, namespace, [number % VOCABULARY] * (1 + dice.below(6)), num_answer=40)

    def do_fork(self, dice: Dice) -> None:
        """Requests over all that one has, at once."""
        if not self.history:
            return
        parent = dice.pick(self.history)
        for number in range(1 + dice.below(4)):
            if len(self.jobs) < MAX_LIVE:
                self._add(dice, parent.namespace, [*parent.tokens, number % VOCABULARY])

    def do_step(self, dice: Dice) -> None:
        self._step()

    def do_pair(self, dice: Dice) -> None:
        """Two equal requests, of which neither finds the other's prefix: what both compute is published twice."""
        before = self.num_arrived
        self.do_arrive(dice)
        if self.num_arrived > before and self.history:
            twin = self.history[-1]
            self._add(dice, twin.namespace, list(twin.tokens[: twin.num_prompt]))

    def do_abort(self, dice: Dice) -> None:
        """Ends a request at one of the moments that there are now, each as likely."""
        points: dict[str, list[Job]] = {}
        for job in self.jobs.values():
            points.setdefault(self._point(job), []).append(job)
        if self.flight is not None:
            unread = [work.sequence.id for work in self.flight.plans[0].work]
            points["unread"] = [self.jobs[name] for name in unread if name in self.jobs] or points.get("unread", [])
        names = sorted(name for name, jobs in points.items() if jobs)
        if not names or dice.one_in(10):
            self.counts["abort:ended"] += 1
            if self.history and (ended := dice.pick(self.history)).id not in self.jobs:
                self.scheduler.remove(ended)
            return
        point = dice.pick(names)
        self.counts["abort:" + point] += 1
        self._end(dice.pick(points[point]), "abort")

    def do_abort_heard(self, dice: Dice) -> None:
        """The listener of the next end ends another request."""
        self.strikes.abort_heard = dice.below(1 << 20)

    def do_abort_planned(self, dice: Dice) -> None:
        """A listener that hears of a time that is over, in the next step, ends a request that is planned."""
        self.strikes.abort_planned = dice.below(1 << 20)

    def do_compile(self, dice: Dice) -> None:
        """A constraint is there, early or late."""
        if self.compiling:
            name = dice.pick(list(self.compiling))
            self.scheduler.add(self.compiling.pop(name).sequence)

    def do_late(self, dice: Dice) -> None:
        """Masks of the next step are late: of one request or of all."""
        self.strikes.late = dice.pick((1, 1, MAX_LIVE))

    def do_resume(self, dice: Dice) -> None:
        for job in self.deferred:
            if not dice.one_in(3):
                self.deferred[job] = True

    def do_lag(self, dice: Dice) -> None:
        """The device turns slow, or quick: passes are read a step later, or at once."""
        if self.flight is None:
            self.overlaps = not self.overlaps

    def do_storm(self, dice: Dice) -> None:
        """Sequences are put back to wait, out of turn."""
        for sequence in list(self.scheduler.running)[dice.below(3) :]:
            self.scheduler._retract(sequence, [])
            self.counts["retracted by force"] += 1

    def do_fail_launch(self, dice: Dice) -> None:
        self.strikes.fails_launch = True

    def do_fail_read(self, dice: Dice) -> None:
        self.strikes.fails_read = True

    def do_jump(self, dice: Dice) -> None:
        """The clock goes on by a moment, or by more than any deadline."""
        self.now += dice.pick((0.5, 20.0, 1e6))

    def do_evict_all(self, dice: Dice) -> None:
        cached = self.cache.counts().cached
        assert self.cache.flush() == cached, "a flush freed something other than what was cached"

    def do_split_all(self, dice: Dice) -> None:
        """Cuts each edge of the tree, as a request that shares a part of it does."""
        for namespace, prefix in [*self._edges()]:
            cut = len(prefix) - (1 + dice.below(3)) * self.page_size
            if cut > 0:
                lease = self.cache.open([*prefix[:cut], 0], namespace)
                self.cache.close(lease, prefix[:cut], 0)

    def _edges(self) -> list[tuple[str, list[int]]]:
        """The tokens up to the end of each edge."""
        found = []
        stack = [(root_, list[int]()) for root_ in self.cache.tree.roots.values()]
        while stack:
            node, before = stack.pop()
            tokens = [*before, *node.tokens]
            if len(node.pages) > 1:
                found.append((node.namespace, tokens))
            stack += [(child, tokens) for child in node.children.values()]
        return found

    # Requests

    def _add(self, dice: Dice, namespace: str, prompt: list[int], num_answer: int | None = None) -> Job | None:
        capacity = (self.num_pages - 1) * self.page_size
        del prompt[min(capacity - 1, 60) :]
        if not prompt:
            return None
        scored = len(prompt) > 1 and num_answer is None and dice.one_in(8)
        num_answer = 1 + dice.below(19) if num_answer is None else num_answer
        deadline = self.now + dice.pick((1.0, 30.0)) if dice.one_in(12) else math.inf
        sequence = Sequence(
            id=str(self.num_arrived),
            tokens=prompt,
            num_prompt=len(prompt),
            standing=Standing(self.num_arrived, priority=dice.pick((0, 0, 0, -2, 3)), deadline=deadline),
            namespace=namespace,
            limit=len(prompt) if scored else min(len(prompt) + num_answer, capacity),
            score=Scoring(1 + dice.below(len(prompt) - 1)) if scored else None,
        )
        constrained = not scored and dice.one_in(3)
        twists = frozenset(dice.below(8) for _ in range(2)) if constrained and dice.one_in(2) else frozenset()
        job = Job(sequence, constrained, twists)
        job.learn(self.device.nan_every)
        self.num_arrived += 1
        self.jobs[sequence.id] = job
        self.history = [*self.history[-15:], sequence]
        if constrained and dice.one_in(2):
            self.compiling[sequence.id] = job
        else:
            self.scheduler.add(sequence)
        return job

    def _point(self, job: Job) -> str:
        sequence = job.sequence
        if sequence.id in self.compiling:
            return "unqueued"
        if job in self.deferred:
            return "deferred"
        if sequence.lease is None:
            return "retracted" if sequence.standing.retractions else "waiting"
        if sequence.score is not None:
            return "scoring"
        if sequence.blocked:
            return "drafting"
        return "decoding" if sequence.num_computed >= sequence.num_prompt else "prefilling"

    def _end(self, job: Job, why: str) -> None:
        """The terminal event, as `Engine._emit` has it."""
        name = job.sequence.id
        if self.jobs.get(name) is not job:
            return
        del self.jobs[name]
        self.compiling.pop(name, None)
        job.terminal.append(why)
        assert len(job.terminal) == 1, f"a request ended twice: {job.terminal}"
        self.counts["end:" + why] += 1
        self.scheduler.remove(job.sequence)
        if (bits := self.strikes.abort_heard) is not None and self.jobs:
            self.strikes.abort_heard = None
            self.counts["abort:heard"] += 1
            self._end(list(self.jobs.values())[bits % len(self.jobs)], "abort")

    # Steps

    def _step(self) -> None:
        strikes = self.strikes
        self.now += 0.01
        self._resume_ready()
        plan = self._schedule()
        before, self.flight = self.flight, None
        ended: list[tuple[Job, str]] = []
        fails = strikes.fails_launch and bool(plan.work)
        if fails:
            strikes.fails_launch = False
            self.scheduler.cancel(plan)
            ended += self._read(before)
        elif plan.work:
            self.flight = self._launch(plan)
            ended += self._read(before)
            self._mask(self.flight)
        else:
            ended += self._read(before)
        if self.flight is not None and not self.overlaps:
            flight, self.flight = self.flight, None
            ended += self._read(flight)
        for job, why in ended:
            self._end(job, why)
        if fails:
            self._fail(plan)

    def _schedule(self) -> Plan:
        scheduler, limits = self.scheduler, self.limits
        waited = [(s, s.standing.passes) for s in scheduler.waiting]
        before = set(scheduler.running)
        plan = scheduler.schedule(self.now)
        assert plan.num_tokens <= limits.max_batch_tokens, "a step has more tokens than it may have"
        assert len(scheduler.running) <= limits.max_num_seqs, "more run than may"
        assert len({work.sequence for work in plan.work}) == len(plan.work), "a sequence is planned twice"
        for work in plan.work:
            assert work.live and 0 <= work.start < work.stop, f"void work is planned: {work}"
            self.served[work.sequence.tenant] += work.num_tokens
        if waited and len(scheduler.waiting) < len(waited) + len(plan.retracted):
            self._check_order(waited, before, plan.retracted)
        self.counts["retracted"] += len(plan.retracted)
        for sequence in plan.expired:
            if (job := self.jobs.get(sequence.id)) is not None:  # who heard the end of one before may have aborted it
                self._end(job, "expired")
        late = [s for s in scheduler.running if self.now >= s.standing.deadline]
        assert not late, "a time is over, and nobody was told"
        if (bits := self.strikes.abort_planned) is not None and plan.work:
            self.strikes.abort_planned = None
            if (job := self.jobs.get(plan.work[bits % len(plan.work)].sequence.id)) is not None:
                self.counts["abort:planned"] += 1
                self._end(job, "abort")
        return Plan([work for work in plan.work if work.live], plan.retracted, plan.expired)

    def _check_order(
        self, waited: list[tuple[Sequence, int]], before: set[Sequence], retracted: list[Sequence]
    ) -> None:
        """Checks that none is admitted before an older sequence of its key that has waited `max_passes`, whatever the
        priority; but for one that was admitted, too, and gave way to another key at once."""
        overdue: dict[str, int] = {}
        waiting = {*self.scheduler.waiting}.difference(retracted)
        for sequence, passes in waited:
            if passes >= self.limits.max_passes and sequence in waiting:
                tenant, arrival = sequence.tenant, sequence.standing.arrival
                overdue[tenant] = min(overdue.get(tenant, arrival), arrival)
        for sequence, passes in waited:
            first = overdue.get(sequence.tenant)
            if first is not None and sequence.lease is not None and sequence not in before:
                late = passes >= self.limits.max_passes and sequence.standing.arrival < first
                assert late, f"{sequence.id} went before {first}, which has waited too long"

    def _launch(self, plan: Plan) -> Flight:
        plans = [plan]
        free = not any(self.jobs[work.sequence.id].constrained for work in plan.work)
        if free and all(w.num_tokens == 1 and w.samples and not w.drafts for w in plan.work):
            plans += self.scheduler.repeat(plan, self.num_ahead - 1)
        flight = Flight(plans, [self.device.run(each) for each in plans], self.strikes.fails_read)
        if flight.fails:  # nobody knows yet; what it has written is worth nothing
            self.strikes.fails_read = False
            for each in plans:
                self.device.spoil(each)
        return flight

    def _mask(self, flight: Flight) -> None:
        """Defers those whose masks are late, as `MaskStage.start` and `finish` do."""
        for work in flight.plans[0].work:
            job = self.jobs.get(work.sequence.id)
            if job is None or not job.constrained or not work.samples or not work.live:
                continue
            ready = self.deferred.pop(job, True)
            if self.strikes.late > 0:
                self.strikes.late -= 1
                ready = False
            if not ready:
                self.scheduler.defer(work.sequence)
                self.deferred[job] = False
                self.counts["deferred"] += 1

    def _resume_ready(self) -> None:
        for job, ready in list(self.deferred.items()):
            if job.terminal:
                del self.deferred[job]
            elif ready:
                self.scheduler.resume(job.sequence)

    def _read(self, flight: Flight | None) -> list[tuple[Job, str]]:
        """Takes in what was drawn; returns who has ended, and how."""
        if flight is None:
            return []
        if flight.fails:
            self._fail(flight.plans[0])
            return []
        ended: list[tuple[Job, str]] = []
        for plan, found in zip(flight.plans, flight.found, strict=True):
            advances = []
            for work, contents in zip(plan.work, found, strict=True):
                advance = Advance()
                if work.live:
                    job = self.jobs[work.sequence.id]
                    advance = self._take(job, work, contents)
                    if advance.finished or advance.poisoned:
                        ended.append((job, "poisoned" if advance.poisoned else "finished"))
                advances.append(advance)
            taken = [work.live for work in plan.work]
            self.scheduler.apply(plan, advances)
            for work, advance, live in zip(plan.work, advances, taken, strict=True):
                if live and advance.tokens:
                    self.jobs[work.sequence.id].learn(self.device.nan_every)
            poisoned = [work for work, advance in zip(plan.work, advances, strict=True) if advance.poisoned]
            self._check_poison({work.sequence.tenant for work in poisoned})
        for work in flight.plans[-1].work:
            self._propose(work)
        return ended

    def _take(self, job: Job, work: Work, contents: list[int]) -> Advance:
        """Does what the engine does with what was drawn; each content must be that of a run without a cache."""
        sequence = work.sequence
        if sequence.score is not None:
            expected = job.contents[work.logits_start : work.logits_stop]
            assert contents == expected, "a score differs from that without a cache"
            if NAN in contents:
                return Advance(poisoned=True)
            return Advance(finished=work.stop >= sequence.num_to_score)
        if not work.samples:
            return Advance()
        assert work.logits_start == len(sequence.tokens) - 1, "a token is drawn out of turn"
        assert job not in self.deferred, "a token is drawn without its mask"
        accepted: list[int] = []
        content = job.contents[-1]
        for offset, drawn in enumerate(contents):
            assert drawn == content, "the output differs from that without a cache"
            if content == NAN:
                return Advance(poisoned=True)
            number = len(sequence.tokens) - sequence.num_prompt + len(accepted)
            replaced = number in job.twists
            token = (next_token(content) + replaced) % VOCABULARY
            accepted.append(token)
            stops = not self.plain and (content >> 11) % 24 == 0
            if stops or len(sequence.tokens) + len(accepted) >= sequence.limit:
                return Advance(tuple(accepted), finished=True, replaced=replaced)
            draft = work.drafts[offset] if offset < len(work.drafts) else None
            if token != draft:
                return Advance(tuple(accepted), replaced=replaced)
            content = follow(content, token, self.device.nan_every)
        raise AssertionError("a work without logits samples")

    def _propose(self, work: Work) -> None:
        sequence = work.sequence
        job = self.jobs.get(sequence.id)
        drafting = self.drafts and not self.plain and sequence.lease is not None and sequence.score is None
        if job is None or not drafting or sequence.num_pending or job in self.deferred:
            return
        content = job.contents[-1]
        room = min(sequence.limit - len(sequence.tokens) - 1, content % 4)
        drafts: list[int] = []
        for number in range(room):
            drafts.append((next_token(content) + (content >> number) % 5 // 4) % VOCABULARY)
            content = follow(content, drafts[-1], self.device.nan_every)
        if drafts:
            self.counts["drafted"] += 1
            self.scheduler.propose(sequence, drafts)

    def _fail(self, plan: Plan) -> None:
        """A pass has failed: its sequences end, none of what they computed is shared."""
        self.scheduler.discard(plan)
        for work in plan.work:
            job = self.jobs.get(work.sequence.id)
            if job is not None and job.sequence is work.sequence:
                self._end(job, "failed")

    # Checks

    @property
    def leases(self) -> list[Lease]:
        return [sequence.lease for sequence in self.scheduler.running if sequence.lease is not None]

    def check(self) -> None:
        scheduler = self.scheduler
        leases = self.leases
        assert len(leases) == len(scheduler.running), "a sequence runs without pages"
        self.cache.check(leases)
        waiting = set()
        for sequence in scheduler.waiting:
            waiting.add(sequence.id)
            assert sequence.lease is None and not sequence.num_computed, "a waiting sequence holds something"
        running = {sequence.id for sequence in scheduler.running}
        assert len(waiting) == len(scheduler.waiting) and len(running) == len(leases), "a sequence is in a line twice"
        parts = (waiting, running, set(self.compiling))
        assert sum(map(len, parts)) == len(self.jobs) and waiting | running | parts[2] == self.jobs.keys(), (
            "somebody is forgotten, or remembered after the end"
        )
        assert all(scheduler.waiting.lines.values()), "a tenant of whom nobody waits has a line"
        self._check_tree_contents()
        for sequence in scheduler.running:
            self._check_contents(sequence)

    def _check_tree_contents(self) -> None:
        """Each cached page holds what its path says (I4), in its own namespace (I14)."""
        size, slots, nan_every = self.page_size, self.device.slots, self.device.nan_every
        stack = [(node, root(name)) for name, node in self.cache.tree.roots.items()]
        while stack:
            node, content = stack.pop()
            position = 0
            for page in node.pages:
                for offset in range(size):
                    content = follow(content, node.tokens[position], nan_every)
                    assert slots[page * size + offset] == content, "a cached page holds something else"
                    position += 1
            stack += [(child, content) for child in node.children.values()]

    def _check_contents(self, sequence: Sequence) -> None:
        """Content that a running sequence has computed is where its page table says, and is its own (I5)."""
        assert sequence.lease is not None
        size, slots, pages = self.page_size, self.device.slots, sequence.lease.pages
        known = sequence.num_settled
        contents = self.jobs[sequence.id].contents
        for position in range(known):
            found = slots[pages[position // size] * size + position % size]
            assert found == contents[position], "a page of a running sequence holds something else"

    def _check_poison(self, tenants: set[str]) -> None:
        """After a sequence that met NaN nothing that its tenant could find is NaN (I10)."""
        size, slots = self.page_size, self.device.slots
        for node in self.cache.tree.nodes() if tenants else ():
            if not node.lock and tenant_of(node.namespace) in tenants:
                found = (slots[page * size + size - 1] for page in node.pages)
                assert NAN not in found, "pages that are not finite stay in the cache"

    # After the last fault

    def settle(self) -> None:
        """All that lives ends within the tokens that are left and eight steps for each (I7), no key starves, and then
        nothing is left."""
        self.strikes = Strikes()
        for name in list(self.compiling):
            self.scheduler.add(self.compiling.pop(name).sequence)
        live = list(self.jobs.values())
        bound = sum(job.sequence.limit for job in live) + 8 * len(live) + 8
        steps = 0
        while self.jobs:
            for job in self.deferred:
                self.deferred[job] = True
            self._step()
            steps += 1
            assert steps <= bound, f"{len(self.jobs)} of {len(live)} have not ended after {steps} steps"
        self._step()  # reads what is in flight
        self._compete()
        self.check()
        assert self.scheduler.idle and self.flight is None
        assert not self.cache.counts().locked and not self.cache.counts().private, "somebody holds pages after the end"
        self.cache.flush()
        counts = self.cache.counts()
        assert counts.free == counts.num_pages == self.num_pages - 1, f"pages are lost: {counts}"
        assert not self.cache.tree.roots and not self.cache.tree.holdings.by_tenant, "namespaces are left behind"
        assert not self.scheduler.waiting.lines

    def _compete(self) -> None:
        """Keys that want all get seats in proportion to their weights; one that comes late gets one within an answer of
        each key."""
        seats, length = self.limits.max_num_seqs, 12
        names = ("a", "b", "c")[: min(3, seats)]
        room = seats * -(-length // self.page_size) < self.num_pages - 1
        if not room or self.limits.max_batch_tokens < 3 * seats or seats < 2 or self.device.nan_every is not None:
            return
        if self.limits.window < len(names):  # whatever the weights, a step looks at one of each
            return
        self.counts["competitions"] += 1
        self.plain, self.overlaps, self.num_ahead = True, False, 1
        total = sum(self.weights[name] for name in names)
        had: Counter[str] = Counter()
        num_steps = 60
        for step in range(num_steps + 12):
            for name in names:
                while sum(s.tenant == name for s in self.scheduler.waiting) < seats + 1:
                    self._compete_with(name, length)
            self._step()
            if step >= 12:
                had.update(sequence.tenant for sequence in self.scheduler.running)
        for name in names:
            due = had.total() / num_steps * self.weights[name] / total
            assert abs(had[name] / num_steps - due) <= 1.0, (
                f"{name} had {had[name] / num_steps:.2f} seats, {due:.2f} were its own"
            )
        late = self._compete_with("late", length)
        for _ in range((len(names) + 1) * length):
            self._step()
        assert late.terminal or late.sequence.lease is not None, "a key that came late got no seat"
        for job in list(self.jobs.values()):
            self._end(job, "abort")

    def _compete_with(self, name: str, length: int) -> Job:
        """A request without stops, whose prompt nobody shares."""
        tokens = [(self.num_arrived // VOCABULARY**place) % VOCABULARY for place in range(5)]
        sequence = Sequence(str(self.num_arrived), tokens, 5, Standing(self.num_arrived), name, limit=length)
        job = Job(sequence, False, frozenset())
        job.learn(None)
        self.num_arrived += 1
        self.jobs[sequence.id] = job
        self.scheduler.add(sequence)
        return job
