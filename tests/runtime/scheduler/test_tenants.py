"""Lines, places and shares of tenants: who floods the engine harms the others by no more than their equal part."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bough.runtime.protocol.config import SchedulerLimits
from bough.runtime.protocol.errors import OverloadedError
from bough.runtime.scheduler.tenants import Places, Service, Waiting, divide

from .test_scheduler import Simulation, sequence

# Lines


@dataclass(eq=False)
class Item:
    tenant: str


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abc"), st.integers(0, 100))))
def test_lines_are_those_of_a_list(moves: list[tuple[bool, str, int]]) -> None:
    waiting: Waiting[Item] = Waiting()
    items: list[Item] = []
    for adds, tenant, place in moves:
        if adds:
            items.append(Item(tenant))
            waiting.add(items[-1])
        elif items:
            gone = items.pop(place % len(items))
            waiting.remove(gone)
            assert gone not in waiting
        assert len(waiting) == len(items) and all(item in waiting for item in items)
        lines = {tenant: [item for item in items if item.tenant == tenant] for tenant in {i.tenant for i in items}}
        assert {tenant: list(line) for tenant, line in waiting.lines.items()} == lines
        assert set(waiting) == set(items)


# Places


def taken_one_by_one(places: Places, tenant: str, limit: int) -> int:
    """Takes up to `limit` places; returns how many there were."""
    for number in range(limit):
        try:
            places.check(tenant)
        except OverloadedError:
            return number
        places.take(tenant)
    return limit


@pytest.mark.parametrize("weight", [1, 3])
@pytest.mark.parametrize("tenant", ["", "a"])
def test_the_most_that_a_tenant_may_have_is_what_it_gets_alone(tenant: str, weight: int) -> None:
    for total in (*range(1, 200), 1000, 4096):
        places = Places(total, {"a": weight})
        assert places.most(tenant) == taken_one_by_one(places, tenant, total + 1), total
    assert Places(None).most(tenant) is None


def test_several_are_there_together_exactly_if_they_are_one_by_one() -> None:
    rng = random.Random(3)
    for _ in range(500):
        total, count = rng.randint(1, 60), rng.randint(1, 20)
        before = [rng.choice(("", "a", "b")) for _ in range(rng.randint(0, total))]
        tenant, weights = rng.choice(("", "a")), {"a": rng.randint(1, 4)}
        places, copy = Places(total, weights), Places(total, weights)
        for each in before:
            places.take(each)
            copy.take(each)
        if taken_one_by_one(copy, tenant, count) == count:
            places.check(tenant, count)
        else:
            with pytest.raises(OverloadedError):
                places.check(tenant, count)
        assert places.num_taken == len(before)


# Shares of a step


@given(st.integers(0, 12), st.dictionaries(st.sampled_from("abcd"), st.integers(0, 12), max_size=4))
def test_nobody_can_get_more_without_taking_from_who_has_less(total: int, wanted: dict[str, int]) -> None:
    given_ = divide(total, wanted)
    assert given_.keys() == wanted.keys()
    possible = itertools.product(*(range(want + 1) for want in wanted.values()))
    best = max((sorted(each) for each in possible if sum(each) <= total), default=[])
    assert sorted(given_.values()) == best
    assert all(given_[name] <= want for name, want in wanted.items())


WEIGHTS = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 100), max_size=4)


@given(st.integers(0, 300), st.dictionaries(st.sampled_from("abcd"), st.integers(0, 200), max_size=4), WEIGHTS)
def test_parts_are_in_proportion_to_weights(total: int, wanted: dict[str, int], weights: dict[str, int]) -> None:
    """A tenant that wants more has no less for each of its parts than any other, but for a token lost to rounding for
    each tenant."""
    given_ = divide(total, wanted, weights)
    assert sum(given_.values()) == min(total, sum(wanted.values()))
    assert all(0 <= given_[name] <= want for name, want in wanted.items())
    for short in (name for name, want in wanted.items() if given_[name] < want):
        least = (given_[short] + 1) / weights.get(short, 1)
        assert all((part - len(wanted)) / weights.get(name, 1) <= least for name, part in given_.items())


def flooded(
    num_tenants: int,
    *,
    prompt: int,
    answer: int,
    num_each: int = 40,
    weights: dict[str, int] | None = None,
    **limits: int,
) -> Simulation:
    bounds = SchedulerLimits(hold_back=10_000, **limits)
    simulation = Simulation(num_pages=4096, page_size=4, limits=bounds, weights=weights or {})
    for index in range(num_tenants * num_each):
        name, number = f"key{index % num_tenants}", index // num_tenants
        simulation.add(sequence(f"{name} {number}", [index % 3] * prompt, index, namespace=name), answer)
    return simulation


@pytest.mark.parametrize("num_tenants", [1, 2, 7])
def test_a_newcomer_waits_for_no_seat(num_tenants: int) -> None:
    simulation = flooded(num_tenants, prompt=6, answer=200, max_num_seqs=8, max_batch_tokens=64)
    for _ in range(6):
        simulation.step()
    assert len(simulation.scheduler.running) == 8
    simulation.add(sequence("quiet", [1, 2, 1], 10_000, namespace="quiet"), 3)
    works = [simulation.step() for _ in range(3)]
    assert all("quiet" in [work.sequence.id for work in work] for work in works)
    assert "quiet" in simulation.done
    assert simulation.scheduler.num_retractions <= 1 + (num_tenants > 1) * num_tenants


@pytest.mark.parametrize("num_tenants", [1, 3])
def test_a_prompt_shares_the_tokens_of_each_step(num_tenants: int) -> None:
    """However long the prompts are that came before."""
    simulation = flooded(num_tenants, prompt=1000, answer=4, num_each=8, max_num_seqs=8, max_batch_tokens=64)
    for _ in range(4):
        simulation.step()
    simulation.add(sequence("quiet", [1] * 60, 10_000, namespace="quiet"), 1)
    part = 64 // (num_tenants + 1) - 8
    steps = 0
    while "quiet" not in simulation.done:
        assert sum(work.num_tokens for work in simulation.step()) == 64
        steps += 1
    assert steps <= -(-60 // part) + 1


def test_a_short_prompt_leaves_the_rest_of_its_part() -> None:
    simulation = flooded(1, prompt=1000, answer=4, num_each=2, max_num_seqs=8, max_batch_tokens=64)
    simulation.step()
    simulation.add(sequence("quiet", [1] * 5, 10_000, namespace="quiet"), 1)
    assert {work.sequence.id: work.num_tokens for work in simulation.step()} == {"key0 0": 59, "quiet": 5}


def test_tenants_that_want_all_get_the_same() -> None:
    simulation = flooded(3, prompt=5, answer=30, num_each=60, max_num_seqs=9, max_batch_tokens=64)
    computed: Counter[str] = Counter()
    for _ in range(100):
        for work in simulation.step():
            computed[work.sequence.tenant] += work.num_tokens
        seats = Counter(one.tenant for one in simulation.scheduler.running)
        assert len(set(seats.values())) <= 1
    assert min(computed.values()) >= 0.9 * max(computed.values())


def test_seats_and_tokens_are_in_proportion_to_weights() -> None:
    """Long prompts, so that the tokens of a step are what is short, and later the seats."""
    weights = {"key0": 3, "key1": 2}
    simulation = flooded(3, prompt=100, answer=30, num_each=80, weights=weights, max_num_seqs=12, max_batch_tokens=72)
    for _ in range(10):
        simulation.step()
    computed: Counter[str] = Counter()
    seats: Counter[str] = Counter()
    for _ in range(150):
        for work in simulation.step():
            computed[work.sequence.tenant] += work.num_tokens
        seats.update(one.tenant for one in simulation.scheduler.running)
    for name, part in (("key0", 3 / 6), ("key1", 2 / 6), ("key2", 1 / 6)):
        assert computed[name] / computed.total() == pytest.approx(part, abs=0.04)
        assert seats[name] / seats.total() == pytest.approx(part, abs=0.04)


def test_answers_of_one_length_leave_seats_in_proportion_to_weights() -> None:
    """All end at once, and what is looked at in a step does not fill the seats."""
    limits = {"max_num_seqs": 6, "max_batch_tokens": 64, "window": 4}
    simulation = flooded(3, prompt=5, answer=7, num_each=80, weights={"key0": 5, "key1": 2, "key2": 2}, **limits)
    seats: Counter[str] = Counter()
    for _ in range(70):
        simulation.step()
        seats.update(one.tenant for one in simulation.scheduler.running)
    for name, part in (("key0", 5 / 9), ("key1", 2 / 9), ("key2", 2 / 9)):
        assert seats[name] / 70 == pytest.approx(6 * part, abs=1.0)


@pytest.mark.parametrize(
    ("num_tenants", "weights", "max_num_seqs"), [(4, {"key0": 7, "key1": 3}, 9), (5, {}, 8)], ids=["weights", "equal"]
)
def test_tenants_do_not_put_each_other_back_in_turn(
    num_tenants: int, weights: dict[str, int], max_num_seqs: int
) -> None:
    simulation = flooded(
        num_tenants, prompt=5, answer=400, num_each=10, weights=weights, max_num_seqs=max_num_seqs, max_batch_tokens=64
    )
    for _ in range(50):
        simulation.step()
    before = simulation.scheduler.num_retractions
    for _ in range(100):
        simulation.step()
    assert simulation.scheduler.num_retractions == before


@pytest.mark.parametrize("num_tenants", [2, 5])
def test_while_no_seat_is_given_nobody_looks_for_cached_prefixes(
    num_tenants: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = flooded(num_tenants, prompt=20, answer=300, max_num_seqs=10, max_batch_tokens=128)
    for _ in range(20):
        simulation.step()
    assert len(simulation.scheduler.running) == 10 and len(simulation.scheduler.waiting) > 50
    searches: list[int] = []
    search = simulation.cache.cached_tokens

    def counted(tokens: list[int], namespace: str = "") -> int:
        searches.append(len(tokens))
        return search(tokens, namespace)

    monkeypatch.setattr(simulation.cache, "cached_tokens", counted)
    for _ in range(50):
        simulation.step()
    assert not searches
    simulation.add(sequence("quiet", [1, 2, 1], 10_000, namespace="quiet"), 3)
    assert "quiet" in [work.sequence.id for work in simulation.step()]


@pytest.mark.parametrize("seed", range(20))
def test_a_seat_is_given_exactly_if_one_of_the_waiting_gets_it(seed: int) -> None:
    rng = random.Random(seed)
    num_tenants = rng.randint(2, 5)
    weights = {f"key{index}": rng.choice([1, 1, 2, 3, 7]) for index in range(num_tenants)}
    limits = SchedulerLimits(max_num_seqs=rng.randint(1, 9), max_batch_tokens=64)
    simulation = Simulation(num_pages=4096, limits=limits, weights=weights)
    for index in range(120):
        name = f"key{rng.randrange(num_tenants)}"
        simulation.add(sequence(str(index), [1, 2, rng.randrange(3)], index, namespace=name), rng.randint(1, 30))
        scheduler = simulation.scheduler
        firsts = [next(iter(line)) for line in scheduler.waiting.lines.values()]
        if scheduler.running:
            gets = any(scheduler._over_share(first, of_seats=True) is not None for first in firsts)
            assert scheduler._gives_a_seat() == gets
        simulation.step()


def test_pages_are_given_up_to_who_has_fewer() -> None:
    limits = SchedulerLimits(max_num_seqs=8, max_batch_tokens=256, hold_back=10_000)
    simulation = Simulation(num_pages=40, page_size=4, limits=limits, sharing=False)
    for index in range(4):
        simulation.add(sequence(str(index), [index % 3] * 30, index, namespace="large"), 8)
    simulation.step()
    assert len(simulation.scheduler.running) == 4
    simulation.add(sequence("quiet", [1] * 40, 10_000, namespace="quiet"), 4)
    assert "quiet" in [work.sequence.id for work in simulation.step()]
    simulation.run()
    assert len(simulation.done) == 5
    simulation.assert_all_free()


def test_the_first_to_arrive_is_never_put_back_for_others() -> None:
    limits = SchedulerLimits(max_num_seqs=8, max_batch_tokens=128)
    simulation = Simulation(num_pages=64, page_size=4, limits=limits, sharing=False)
    simulation.add(sequence("first", [1] * 100, 0, namespace="large"), 60)
    simulation.step()
    steps = 0
    while "first" not in simulation.done:
        for number in range(3):
            simulation.add(sequence(f"{steps} {number}", [2] * 30, 1 + steps, namespace=f"key{number}"), 20)
        simulation.step()
        steps += 1
        assert steps < 80
    assert simulation.scheduler.num_retractions > 0
    assert simulation.done["first"].standing.retractions == 0


def test_within_a_tenant_priority_orders_and_between_tenants_it_does_not() -> None:
    simulation = Simulation(num_pages=256, limits=SchedulerLimits(max_num_seqs=2, max_batch_tokens=64))
    for index in range(6):
        item = sequence(f"urgent {index}", [1, 2], index, namespace="pushy")
        item.standing.priority = -5
        simulation.add(item, 50)
    late = sequence("late", [2, 1], 50, namespace="patient")
    late.standing.priority = 9
    simulation.add(late, 4)
    assert [work.sequence.id for work in simulation.step()] == ["urgent 0", "late"]


@pytest.mark.parametrize("window", [2, 256])
def test_a_low_priority_goes_first_once_it_has_waited_long(window: int) -> None:
    """Though more urgent ones of its key keep coming, and would fill the window."""
    limits = SchedulerLimits(max_num_seqs=1, max_batch_tokens=64, max_passes=8, window=window)
    simulation = Simulation(num_pages=256, page_size=1, limits=limits)
    late = sequence("late", [2, 1], 0, namespace="key")
    late.standing.priority = 9
    steps = 0
    simulation.add(late, 1)
    while "late" not in simulation.done:
        for number in range(3):
            item = sequence(f"{steps} {number}", [1, 2], 1 + steps, namespace="key")
            item.standing.priority = -5
            simulation.add(item, 1)
        simulation.step()
        steps += 1
        assert steps <= limits.max_passes + 2
    assert steps > limits.max_passes / 2  # before that, priority counted


def test_more_keys_than_tokens_of_a_step_do_not_stop_each_other() -> None:
    """All seats are taken by prompts, and each of the many who wait is due a part of the step, too."""
    simulation = flooded(40, prompt=30, answer=2, num_each=1, max_num_seqs=4, max_batch_tokens=16)
    simulation.run(max_steps=40 * 32)
    assert len(simulation.done) == 40


def test_who_asked_for_little_lately_has_its_whole_prompt_computed_at_once() -> None:
    """However many others flood the engine."""
    simulation = flooded(10, prompt=400, answer=4, num_each=8, max_num_seqs=16, max_batch_tokens=128)
    for round_ in range(6):
        for _ in range(24):
            simulation.step()
        prompt = random.Random(round_).choices(range(3), k=60)
        simulation.add(sequence(f"quiet {round_}", prompt, 10_000 + round_, namespace="quiet"), 1)
        assert {work.sequence.id: work.stop for work in simulation.step()}[f"quiet {round_}"] == 60


def test_who_had_less_goes_first_up_to_a_credit() -> None:
    service = Service(credit=100)
    service.charge("busy", 1_000_000)
    assert service.divide(150, {"busy": 500, "quiet": 500}) == {"busy": 25, "quiet": 125}
    service.charge("quiet", 125)
    service.charge("busy", 25)
    assert service.divide(150, {"busy": 500, "quiet": 500}) == {"busy": 75, "quiet": 75}


LEVELS = st.dictionaries(st.sampled_from("abcd"), st.floats(0, 100), max_size=4)


@given(st.integers(0, 300), st.dictionaries(st.sampled_from("abcd"), st.integers(0, 200), max_size=4), WEIGHTS, LEVELS)
def test_who_wants_more_is_level_with_all_who_were_given_some(
    total: int, wanted: dict[str, int], weights: dict[str, int], had: dict[str, float]
) -> None:
    given_ = divide(total, wanted, weights, had)
    assert sum(given_.values()) == min(total, sum(wanted.values()))
    height = {name: had.get(name, 0.0) + part / weights.get(name, 1) for name, part in given_.items()}
    for short in (name for name, want in wanted.items() if given_[name] < want):
        assert all(height[short] >= height[name] - 2 for name, part in given_.items() if part)


def test_service_remembers_a_bounded_number_of_tenants() -> None:
    service = Service(credit=10)
    for number in range(10_000):
        service.charge(f"key{number}", 7)
    assert len(service._had) <= 4096
