"""The scheduler against a fake model: what is generated never depends on the schedule."""

from __future__ import annotations

import math
import random
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bough
from bough.radix import PrefixCache
from bough.runtime.protocol.config import SchedulerLimits
from bough.runtime.scheduler.scheduler import Advance, Plan, Scheduler, Scoring, Sequence, Standing, Work

from ...support.fakes import FakeModel, advance, reference

VOCAB = 3


def sequence(
    name: str, tokens: list[int], arrival: int = 0, *, deadline: float = math.inf, **fields: object
) -> Sequence:
    standing = Standing(arrival, deadline=deadline)
    return Sequence(id=name, tokens=list(tokens), num_prompt=len(tokens), standing=standing, **fields)  # type: ignore[arg-type]


@dataclass
class Simulation:
    """Scheduler, cache and fake model, driven step by step with everything checked after each."""

    num_pages: int = 64
    page_size: int = 4
    limits: SchedulerLimits = field(default_factory=SchedulerLimits)
    sharing: bool = True
    weights: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cache = PrefixCache(self.num_pages, self.page_size, sharing=self.sharing, weights=self.weights)
        self.scheduler = Scheduler(self.cache, self.limits, self.weights)
        self.model = FakeModel(self.num_pages, self.page_size, VOCAB)
        self.wanted: dict[str, int] = {}
        self.done: dict[str, Sequence] = {}
        self.computed = 0
        self.trace: list[list[tuple[str, int, int]]] = []

    def add(self, item: Sequence, max_tokens: int) -> None:
        self.wanted[item.id] = max_tokens
        self.scheduler.add(item)

    def step(
        self, now: float = 0.0, drafts: random.Random | None = None, prompt_tokens: int = sys.maxsize
    ) -> list[Work]:
        plan = self.scheduler.schedule(now, prompt_tokens)
        assert sum(work.num_prompt_tokens for work in plan.work) <= prompt_tokens
        self.trace.append([(work.sequence.id, work.start, work.stop) for work in plan.work])
        assert sum(work.num_tokens for work in plan.work) <= self.limits.max_batch_tokens
        assert len(self.scheduler.running) <= self.limits.max_num_seqs
        picks = self.model.run(plan)
        self.computed += sum(work.num_tokens for work in plan.work)
        advances = [
            advance(work, pick, self.wanted[work.sequence.id]) for work, pick in zip(plan.work, picks, strict=True)
        ]
        self.scheduler.apply(plan, advances)
        for work, moved in zip(plan.work, advances, strict=True):
            if moved.finished:
                self.done[work.sequence.id] = work.sequence
            elif moved.tokens and drafts is not None:
                room = self.wanted[work.sequence.id] - (len(work.sequence.tokens) - work.sequence.num_prompt) - 1
                proposed = [drafts.randrange(VOCAB) for _ in range(drafts.randrange(max(room, 0) + 1))]
                self.scheduler.propose(work.sequence, proposed[:4])
        self.cache.check([item.lease for item in self.scheduler.running if item.lease is not None])
        return plan.work

    def run(self, max_steps: int = 5000, drafts: random.Random | None = None) -> None:
        steps = 0
        while not self.scheduler.idle:
            self.step(drafts=drafts)
            steps += 1
            assert steps < max_steps, "no progress"

    def outputs(self) -> dict[str, list[int]]:
        return {name: item.tokens[item.num_prompt :] for name, item in self.done.items()}

    def assert_all_free(self) -> None:
        self.cache.flush()
        counts = self.cache.counts()
        assert counts.free == counts.num_pages


@st.composite
def workloads(draw: st.DrawFn) -> tuple[Simulation, list[tuple[list[int], int, str]], int]:
    page_size = draw(st.sampled_from([1, 2, 4]))
    stem = draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=24))
    jobs = []
    for _ in range(draw(st.integers(1, 8))):
        cut = draw(st.integers(0, len(stem)))
        tail = draw(st.lists(st.integers(0, VOCAB - 1), min_size=0 if cut else 1, max_size=12))
        jobs.append((stem[:cut] + tail, draw(st.integers(1, 12)), draw(st.sampled_from(["", "a"]))))
    longest = max(len(prompt) + count for prompt, count, _ in jobs)
    pages = -(-(longest + 4) // page_size) + 1
    simulation = Simulation(
        num_pages=pages + draw(st.integers(0, 12)),
        page_size=page_size,
        limits=SchedulerLimits(
            max_num_seqs=draw(st.integers(1, 8)),
            max_batch_tokens=draw(st.integers(8, 64)),
            max_passes=draw(st.sampled_from([2, 64])),
            hold_back=draw(st.sampled_from([2, 16])),
        ),
        sharing=draw(st.booleans()),
    )
    return simulation, jobs, draw(st.integers(0, 2**16))


@given(workloads())
@settings(max_examples=250, deadline=None)
def test_outputs_do_not_depend_on_the_schedule(
    workload: tuple[Simulation, list[tuple[list[int], int, str]], int],
) -> None:
    simulation, jobs, seed = workload
    for index, (prompt, count, namespace) in enumerate(jobs):
        simulation.add(sequence(str(index), prompt, index, namespace=namespace), count)
    simulation.run(drafts=random.Random(seed) if seed % 2 else None)
    outputs = simulation.outputs()
    for index, (prompt, count, namespace) in enumerate(jobs):
        assert outputs[str(index)] == reference(prompt, namespace, count, VOCAB)
    simulation.assert_all_free()


@given(workloads(), st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_plans_may_be_made_before_the_last_one_is_read(
    workload: tuple[Simulation, list[tuple[list[int], int, str]], int], num_steps: int
) -> None:
    """Each plan, and up to `num_steps` in all of the same sequences, is computed before the one before it is read."""
    simulation, jobs, seed = workload
    scheduler, model, drafts = simulation.scheduler, simulation.model, random.Random(seed)
    for index, (prompt, count, namespace) in enumerate(jobs):
        item = sequence(str(index), prompt, index, namespace=namespace, limit=len(prompt) + count)
        simulation.add(item, count)
    unread: list[tuple[Plan, list[list[int]]]] = []
    drawn: dict[Sequence, list[int]] = {}

    def read() -> None:
        for plan, picks in unread:
            advances = [
                advance(work, pick, simulation.wanted[work.sequence.id]) if work.live else Advance()
                for work, pick in zip(plan.work, picks, strict=True)
            ]
            live = [work.live for work in plan.work]
            scheduler.apply(plan, advances)
            for work, moved, was_live in zip(plan.work, advances, live, strict=True):
                if was_live and moved.finished:
                    simulation.done[work.sequence.id] = work.sequence
                elif was_live and moved.tokens and seed % 2 and not work.sequence.num_pending:
                    scheduler.propose(work.sequence, [drafts.randrange(VOCAB) for _ in range(drafts.randrange(4))])
        unread.clear()

    for _ in range(5000):
        if scheduler.idle:
            break
        plans = [scheduler.schedule(0.0)]
        if plans[0].work and all(w.num_tokens == 1 and w.samples and not w.drafts for w in plans[0].work):
            plans += scheduler.repeat(plans[0], num_steps - 1)
        computed = []
        for plan in plans:
            computed.append((plan, model.run(plan, drawn)))
        read()
        unread += computed
        simulation.cache.check([item.lease for item in scheduler.running if item.lease is not None])
        assert all(0 <= s.num_settled <= s.num_computed <= s.length for s in scheduler.running)
    assert scheduler.idle
    for index, (prompt, count, namespace) in enumerate(jobs):
        assert simulation.outputs()[str(index)] == reference(prompt, namespace, count, VOCAB)
    simulation.assert_all_free()


@given(workloads(), st.integers(0, 2**16))
@settings(max_examples=100, deadline=None)
def test_removing_sequences_anywhere_harms_no_other(
    workload: tuple[Simulation, list[tuple[list[int], int, str]], int], seed: int
) -> None:
    simulation, jobs, _ = workload
    rng = random.Random(seed)
    items = [sequence(str(i), prompt, i, namespace=space) for i, (prompt, _, space) in enumerate(jobs)]
    removed: set[str] = set()
    steps = 0
    for item, (_, count, _) in zip(items, jobs, strict=True):
        simulation.add(item, count)
    while not simulation.scheduler.idle:
        simulation.step()
        if rng.random() < 0.3:
            victim = rng.choice(items)
            simulation.scheduler.remove(victim)
            if victim.id not in simulation.done:
                removed.add(victim.id)
        steps += 1
        assert steps < 5000
    for item, (prompt, count, space) in zip(items, jobs, strict=True):
        if item.id not in removed:
            assert simulation.outputs()[item.id] == reference(prompt, space, count, VOCAB)
    simulation.assert_all_free()


def test_the_same_calls_give_the_same_trace() -> None:
    def trace() -> list[list[tuple[str, int, int]]]:
        simulation = Simulation(num_pages=20, limits=SchedulerLimits(max_batch_tokens=16))
        for index in range(6):
            simulation.add(sequence(str(index), [0, 1, 2, 1] * 3 + [index % VOCAB], index), 7)
        simulation.run()
        return simulation.trace

    assert trace() == trace()


def test_a_prefix_that_is_being_computed_is_waited_for() -> None:
    """Eight branches over a common prefix of 512 tokens compute it once, although they arrive together."""
    stem = [random.Random(1).randrange(VOCAB) for _ in range(512)]
    simulation = Simulation(num_pages=4096, page_size=1, limits=SchedulerLimits(max_batch_tokens=256))
    for index in range(8):
        simulation.add(sequence(str(index), [*stem, index % VOCAB, index // VOCAB, 1], index), 4)
    simulation.run()
    ideal = 512 + 8 * 3 + 8 * 3
    assert ideal - 24 <= simulation.computed <= ideal + 8


def awaits(scheduler: Scheduler, waiting: Sequence, computing: list[Sequence]) -> bool:
    """True if a prefix that is being computed is longer than the cached one by `hold_back` tokens."""
    cached = scheduler.cache.cached_tokens(waiting.tokens, waiting.namespace)
    for other in computing:
        pairs = enumerate(zip(other.tokens, waiting.tokens, strict=False))
        common = next((index for index, (ours, theirs) in pairs if ours != theirs), None)
        common = min(len(other.tokens), len(waiting.tokens)) if common is None else common
        shared = min(common, other.num_prompt, other.num_shareable, waiting.match_limit)
        if other.namespace == waiting.namespace and common and shared - cached >= scheduler.limits.hold_back:
            return True
    return False


@settings(max_examples=300)
@given(st.data())
def test_a_prefix_is_waited_for_exactly_where_it_saves_enough(data: st.DataObject) -> None:
    stem = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=700), "stem")

    def drawn(name: str, num_generated: int = 0) -> Sequence:
        tokens = stem[: data.draw(st.integers(1, len(stem)), "cut")]
        if data.draw(st.booleans(), "changed"):
            tokens[data.draw(st.integers(0, len(tokens) - 1), "place")] = 7
        tokens += data.draw(st.lists(st.integers(0, 1), min_size=2, max_size=4), "tail")
        start = data.draw(st.none() | st.integers(0, len(tokens) - 1), "score")
        scoring = None if start is None else Scoring(start)
        made = sequence(name, tokens, score=scoring, namespace=data.draw(st.sampled_from(["", "a"]), "namespace"))
        made.num_prompt -= num_generated
        return made

    limits = SchedulerLimits(hold_back=data.draw(st.integers(1, 20) | st.integers(1, 400), "hold_back"))
    scheduler = Scheduler(PrefixCache(512, 2), limits)
    for number in range(data.draw(st.integers(0, 2), "cached")):
        known = drawn(f"cached {number}")
        lease = scheduler.cache.open(known.tokens, known.namespace, limit=known.match_limit)
        if scheduler.cache.reserve(lease, len(known.tokens)):
            scheduler.cache.commit(lease, known.tokens, len(known.tokens) - 1)
        scheduler.cache.close(lease, known.tokens, 0)
    computing = [drawn(f"computing {number}", number % 2) for number in range(data.draw(st.integers(1, 4), "others"))]
    waiting = drawn("waiting")
    assert scheduler._awaits_prefix(waiting, computing) == awaits(scheduler, waiting, computing)


class CountedTokens(list[int]):
    """Counts the tokens that are copied."""

    copied: list[int]

    def __getitem__(self, key):
        if isinstance(key, slice):
            self.copied.append(len(range(*key.indices(len(self)))))
        return super().__getitem__(key)


@pytest.mark.parametrize("num_equal", [0, 20, 60_000, 100_000])
def test_to_compare_prompts_is_to_copy_little(num_equal: int) -> None:
    scheduler = Scheduler(PrefixCache(16, 4), SchedulerLimits())
    tokens = list(range(100_000))
    scheduler.cache.cached_tokens = lambda *_, **__: 90_000  # type: ignore[method-assign]
    other = sequence("computing", tokens[:num_equal] + [-1] * (100_000 - num_equal))
    waiting = sequence("waiting", tokens)
    other.tokens, waiting.tokens = CountedTokens(other.tokens), CountedTokens(waiting.tokens)
    CountedTokens.copied = []
    assert scheduler._awaits_prefix(waiting, [other]) == (num_equal == 100_000)
    assert max(CountedTokens.copied, default=0) < 1000
    assert num_equal == 100_000 or sum(CountedTokens.copied) < 100


def test_a_retracted_sequence_finds_what_it_computed() -> None:
    simulation = Simulation(num_pages=14, page_size=4, limits=SchedulerLimits(max_batch_tokens=64, hold_back=100))
    for index in range(2):
        simulation.add(sequence(str(index), [index] * 16, index), 12)
    simulation.run()
    assert simulation.scheduler.num_retractions >= 1
    assert simulation.outputs()["1"] == reference([1] * 16, "", 12, VOCAB)


def test_who_waits_long_goes_first() -> None:
    """A cold request is admitted within max_passes steps though a stream of warm ones would always sort before it."""
    limits = SchedulerLimits(max_num_seqs=1, max_batch_tokens=64, max_passes=8)
    simulation = Simulation(num_pages=256, page_size=1, limits=limits)
    warm = [1] * 20
    simulation.add(sequence("first", warm, 0), 1)
    simulation.run()
    simulation.add(sequence("cold", [0] * 20, 1), 1)
    steps = 0
    while "cold" not in simulation.done:
        simulation.add(sequence(f"warm{steps}", [*warm, 2], steps + 2), 1)
        simulation.step()
        steps += 1
        assert steps <= limits.max_passes + 2


def test_longest_cached_prefix_goes_first() -> None:
    simulation = Simulation(num_pages=256, page_size=1, limits=SchedulerLimits(max_num_seqs=1))
    simulation.add(sequence("a", [1] * 30, 0), 1)
    simulation.run()
    simulation.add(sequence("cold", [2] * 30, 1), 1)
    simulation.add(sequence("warm", [1] * 31, 2), 1)
    assert [work.sequence.id for work in simulation.step()] == ["warm"]


def test_an_expired_sequence_is_taken_out_wherever_it_is() -> None:
    simulation = Simulation(limits=SchedulerLimits(max_num_seqs=1))
    simulation.add(sequence("running", [1] * 8, 0, deadline=5.0), 50)
    simulation.add(sequence("waiting", [2] * 8, 1, deadline=5.0), 50)
    simulation.step(now=0.0)
    plan = simulation.scheduler.schedule(6.0)
    assert [item.id for item in plan.expired] == ["running", "waiting"]
    assert simulation.scheduler.idle
    simulation.assert_all_free()


@pytest.mark.parametrize("start", [1, 5, 20])
def test_scoring_asks_for_the_logits_of_each_position_before_a_scored_token(start: int) -> None:
    simulation = Simulation(num_pages=64, page_size=1, limits=SchedulerLimits(max_batch_tokens=8))
    tokens = [i % VOCAB for i in range(24)]
    simulation.add(sequence("warm", tokens, 0), 1)
    simulation.run()
    scored = sequence("score", tokens, 1, score=Scoring(start))
    simulation.scheduler.add(scored)
    positions: list[int] = []
    while scored.num_computed < len(tokens) - 1:
        for work in simulation.scheduler.schedule(0.0).work:
            positions += range(work.logits_start, work.logits_stop)
            plan = Plan([work], [], [])
            simulation.model.run(plan)
            simulation.scheduler.apply(plan, [Advance()])
    assert positions == list(range(start - 1, len(tokens) - 1))


def test_a_poisoned_sequence_leaves_nothing_in_the_cache() -> None:
    simulation = Simulation(page_size=1)
    item = sequence("bad", [1] * 8, 0)
    simulation.add(item, 4)
    plan = simulation.scheduler.schedule(0.0)
    simulation.model.run(plan)
    simulation.scheduler.apply(plan, [Advance(poisoned=True)])
    assert simulation.cache.cached_tokens([1] * 9) == 0
    assert simulation.scheduler.idle


def test_a_last_token_in_place_of_the_drawn_one_is_not_published_as_computed() -> None:
    """The step in flight computes keys and values of the token that was drawn."""
    simulation = Simulation(page_size=1)
    scheduler = simulation.scheduler
    scheduler.add(sequence("a", [1] * 8))
    first = scheduler.schedule(0.0)
    in_flight = scheduler.schedule(0.0)
    assert [work.start for work in in_flight.work] == [8]
    scheduler.apply(first, [Advance((7,), finished=True, replaced=True)])
    assert simulation.cache.cached_tokens([1] * 8 + [7, 7]) == 8
    scheduler.apply(in_flight, [Advance()])
    simulation.assert_all_free()


@pytest.mark.parametrize("moment", ["planned", "in flight", "deferred"])
def test_who_ends_before_its_pass_is_read_publishes_nothing_of_it(moment: str) -> None:
    """It may never be launched, and it may fail."""
    simulation = Simulation(page_size=1)
    scheduler, item = simulation.scheduler, sequence("a", [1] * 8)
    scheduler.add(item)
    plan = scheduler.schedule(0.0)
    if moment != "planned":
        simulation.model.run(plan)
    if moment == "deferred":
        scheduler.defer(item)
    scheduler.remove(item)
    assert simulation.cache.cached_tokens([1] * 9) == 0
    simulation.assert_all_free()


# Who changes what


def test_a_sequence_checks_its_counts_at_birth_and_after_a_rewind() -> None:
    with pytest.raises(AssertionError):
        Sequence("s", [1, 2, 3], 3, Standing(0), num_computed=1, num_settled=2)
    with pytest.raises(AssertionError):
        Sequence("s", [1, 2, 3], 3, Standing(0), num_computed=4)
    sequence = Sequence("s", [1, 2, 3], 3, Standing(0), num_computed=3, num_settled=2)
    with pytest.raises(AssertionError):
        sequence.rewind(4)


def test_the_scheduler_alone_changes_a_sequence() -> None:
    fields = "|".join(Sequence.__dataclass_fields__)
    change = re.compile(
        rf"\bsequence\.(?:(?:{fields})(?:\[.*\])? *[-+]?= |tokens\.\w+\(|drafts\.\w+\(|standing\.\w+ *[-+]?= |rewind\()"
    )
    assert change.search("work.sequence.num_computed = 3") and change.search("sequence.drafts.clear()")
    runtime = Path(bough.__file__).parent / "runtime"
    files = [file for file in runtime.rglob("*.py") if file.parent.name != "scheduler"]
    assert not [file.name for file in files if change.search(file.read_text())]


# Tokens of prompts in a step


@pytest.mark.parametrize("num_tenants", [1, 3])
@given(st.integers(0, 1 << 16))
@settings(max_examples=15)
def test_a_bound_on_prompts_holds_in_every_step_and_changes_no_answer(num_tenants: int, seed: int) -> None:
    rng = random.Random(seed)
    workload = [([rng.randrange(VOCAB) for _ in range(rng.randrange(1, 60))], rng.randrange(1, 9)) for _ in range(12)]

    def outputs(bounded: bool) -> dict[str, list[int]]:
        simulation = Simulation(limits=SchedulerLimits(max_num_seqs=5, max_batch_tokens=32))
        for index, (tokens, max_tokens) in enumerate(workload):
            namespace = f"key{index % num_tenants}"
            simulation.add(sequence(str(index), tokens, index, namespace=namespace), max_tokens)
        steps = 0
        while not simulation.scheduler.idle:
            simulation.step(drafts=random.Random(seed), prompt_tokens=rng.choice((3, 5, 16, 40)) if bounded else 40)
            steps += 1
            assert steps < 2000, "no progress"
        simulation.assert_all_free()
        return simulation.outputs()

    assert outputs(True) == outputs(False)


def test_what_decodes_is_not_bounded_with_prompts() -> None:
    simulation = Simulation(num_pages=256, limits=SchedulerLimits(max_num_seqs=16, max_batch_tokens=64, hold_back=1000))
    for index in range(8):
        simulation.add(sequence(f"short {index}", [index % 3, 1], index), 20)
    simulation.step()
    simulation.add(sequence("long", [1, 2] * 40, 9), 1)
    sizes = [{work.sequence.id: work.num_tokens for work in simulation.step(prompt_tokens=4)} for _ in range(6)]
    assert all(len(step) == 9 and step["long"] == 4 for step in sizes)


def test_a_step_that_is_taken_back_is_planned_again_in_any_parts() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        plain, broken = (Simulation(num_pages=256, limits=SchedulerLimits(max_batch_tokens=24)) for _ in range(2))
        for simulation in (plain, broken):
            for index in range(6):
                simulation.add(sequence(str(index), [(index * seed + place) % 3 for place in range(17)], index), 6)
        plain.run()
        scheduler = broken.scheduler
        while not scheduler.idle:
            plan = scheduler.schedule(0.0)
            scheduler.cancel(plan)
            scheduler.take_back(plan)
            parts = [[(work.sequence, rng.randrange(1, work.num_tokens + 1))] for work in plan.work]
            for part in rng.sample(parts, len(parts)):
                again = scheduler.replan(part)
                picks = broken.model.run(again)
                advances = [
                    advance(work, pick, broken.wanted[work.sequence.id])
                    for work, pick in zip(again.work, picks, strict=True)
                ]
                scheduler.apply(again, advances)
                broken.done |= {
                    work.sequence.id: work.sequence
                    for work, moved in zip(again.work, advances, strict=True)
                    if moved.finished
                }
            broken.cache.check([one.lease for one in scheduler.running if one.lease is not None])
        assert broken.outputs() == plain.outputs()
        broken.assert_all_free()
