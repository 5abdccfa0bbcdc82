"""The simulation: no promise is broken, every fault happens, every planted bug is found and made small.

Operations are divided among tests so that each takes a fraction of the time that one test may. `make sim` runs more.
"""

from __future__ import annotations

from functools import partial

import pytest

from bough.radix import PrefixCache

from .engine_world import FAULTS as ENGINE_FAULTS
from .engine_world import EngineWorld
from .mutants import MUTANTS, PublishesWhatIsPlanned
from .operations import Operation, shrink
from .scheduler_world import ABORT_POINTS, FAULTS, SchedulerWorld
from .simulate import Draw, MakeWorld, ViolationError, play, shrunk, simulate

NUM_SCHEDULER, NUM_ENGINE = 120_000, 10_000
"""Operations for each of eight and of four seeds: a million in all."""

ENDS = ("finished", "abort", "expired", "failed", "poisoned")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_nothing_breaks_the_scheduler(seed: int) -> None:
    counts = simulate(SchedulerWorld, SchedulerWorld.draw, seed, NUM_SCHEDULER, check_every=16)
    print(dict(sorted(counts.items())))
    wanted = [*FAULTS, *(f"abort:{point}" for point in ABORT_POINTS), *(f"end:{end}" for end in ENDS)]
    wanted += ["deferred", "drafted", "retracted", "retracted by force", "competitions"]
    rare = {name: counts[name] for name in wanted if counts[name] < (1 if name == "abort:drafting" else 10)}
    assert not rare, f"did not happen, or hardly: {rare}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_nothing_breaks_the_engine_and_its_programs(seed: int) -> None:
    counts = simulate(EngineWorld, EngineWorld.draw, seed, NUM_ENGINE, check_every=4)
    print(dict(sorted(counts.items())))
    aborts = [f"abort:{place}" for place in ("compiling", "waiting", "running", "heard")]
    ends = ["end:stop", "end:length", "end:abort", "end:internal_error", "program:Done", "program:Failed"]
    others = ["dropped running", "dropped kept", "late masks", "retracted by force", "resume_program"]
    assert not [name for name in (*ENGINE_FAULTS, *aborts, *ends, *others) if not counts[name]]


@pytest.mark.parametrize(("make", "draw"), MUTANTS.values(), ids=MUTANTS)
def test_every_planted_bug_is_found_whatever_the_seed(make: MakeWorld, draw: Draw) -> None:
    for seed in range(5):
        with pytest.raises(ViolationError, match=r"seed=\d+ ops=\d+ "):
            simulate(make, draw, seed, 20_000, check_every=4)


@pytest.mark.parametrize("seed", range(3))
def test_a_failure_is_made_small_and_seen_again(seed: int) -> None:
    make = partial(SchedulerWorld, make_scheduler=PublishesWhatIsPlanned)
    with pytest.raises(ViolationError) as caught:
        simulate(make, SchedulerWorld.draw, seed, 20_000)
    violation = caught.value
    with pytest.raises(ViolationError) as again:
        play(make, violation.seed, SchedulerWorld.draw(violation.seed, len(violation.operations)))  # as `--replay` does
    assert str(again.value) == str(violation)
    few = shrunk(make, violation)
    assert len(few) <= 30
    with pytest.raises(ViolationError):
        play(make, violation.seed, few)
    play(SchedulerWorld, violation.seed, few)  # the bug is what fails, not the operations


@pytest.mark.parametrize(("make", "draw"), [(SchedulerWorld, SchedulerWorld.draw), (EngineWorld, EngineWorld.draw)])
def test_the_same_seed_gives_the_same_episodes(make: MakeWorld, draw: Draw) -> None:
    first, second = (simulate(make, draw, 3, 1000, check_every=50) for _ in range(2))
    assert first == second


def test_shrinking_leaves_what_is_needed_and_nothing_else() -> None:
    operations: list[Operation] = [("step", number) for number in range(1000)]
    needed = {17, 500, 501, 998}
    few = shrink(operations, lambda some: needed <= {bits for _, bits in some})
    assert [bits for _, bits in few] == sorted(needed)


class CannotFlush(PrefixCache):
    def flush(self, tenant: str | None = None) -> int:
        raise RuntimeError("no flush")


def test_an_error_of_any_kind_is_a_violation() -> None:
    with pytest.raises(ViolationError, match="RuntimeError: no flush"):
        simulate(partial(SchedulerWorld, make_cache=CannotFlush), SchedulerWorld.draw, 0, 100)
