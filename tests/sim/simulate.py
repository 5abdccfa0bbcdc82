"""Deterministic simulation: the production scheduler, cache and programs under a seeded nemesis, on one thread.

    python -m tests.sim.simulate --operations 20000000 --seed 1
    python -m tests.sim.simulate --replay scheduler --seed 12000034 --operations 300

An episode follows from its seed and its number of operations. One that fails prints the line that shows it again, and
the fewest of its operations that still fail. Operations are those of the nemesis and of those who ask: an arrival, a
step, a fault.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random

from .engine_world import EngineWorld
from .operations import Operation, World, shrink
from .scheduler_world import SchedulerWorld

LENGTHS = (60, 200, 600)
EPISODES = 1_000_000
"""Episodes that one seed has, of which each has a seed of its own."""

MakeWorld = Callable[[int], World]
Draw = Callable[[int, int], list[Operation]]

LEVELS: dict[str, tuple[MakeWorld, Draw]] = {
    "scheduler": (SchedulerWorld, SchedulerWorld.draw),
    "engine": (EngineWorld, EngineWorld.draw),
}
ENGINE_SHARE = 25
"""One in so many operations is at the level of the engine and its programs; the others are at the scheduler's."""


class ViolationError(Exception):
    """A promise was broken. The message is the line that shows it again."""

    def __init__(self, seed: int, operations: Sequence[Operation], error: Exception) -> None:
        super().__init__(f"seed={seed} ops={len(operations)} {type(error).__name__}: {error}")
        self.seed = seed
        self.operations = list(operations)


def play(make: MakeWorld, seed: int, operations: Sequence[Operation], *, check_every: int = 1) -> Counter[str]:
    """Plays one episode, with a full check after each `check_every` operations; returns how often what happened.

    Raises:
        ViolationError: a promise was broken.
    """
    done = 0
    try:
        world = make(seed)
        for operation in operations:
            done += 1
            world.do(operation)
            if done % check_every == 0:
                world.check()
        done = len(operations)
        world.settle()
    except Exception as error:
        raise ViolationError(seed, operations[:done], error) from error
    return world.counts


def episodes(seed: int, num_operations: int) -> Iterator[tuple[int, int]]:
    """Seed and number of operations of each episode."""
    random = Random(seed)
    number = 0
    while num_operations > 0:
        length = min(random.choice(LENGTHS), num_operations)
        yield seed * EPISODES + number, length
        num_operations -= length
        number += 1


def simulate(
    make: MakeWorld,
    draw: Draw,
    seed: int,
    num_operations: int,
    *,
    check_every: int = 1,
    tell: Callable[[int], None] | None = None,
) -> Counter[str]:
    """Plays episodes of `num_operations` in all; returns how often what happened. Raises ViolationError."""
    counts: Counter[str] = Counter()
    done = 0
    for each, length in episodes(seed, num_operations):
        counts += play(make, each, draw(each, length), check_every=check_every)
        counts["episodes"] += 1
        done += length
        if tell is not None:
            tell(done)
    return counts


def shrunk(make: MakeWorld, violation: ViolationError, *, check_every: int = 1) -> list[Operation]:
    """Returns the fewest of the operations that still break a promise."""

    def fails(operations: Sequence[Operation]) -> bool:
        try:
            play(make, violation.seed, operations, check_every=check_every)
        except ViolationError:
            return True
        return False

    return shrink(violation.operations, fails)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check-every", type=int, default=8, help="operations between full checks")
    parser.add_argument("--replay", choices=LEVELS, help="play the episode of --seed and --operations at this level")
    arguments = parser.parse_args()
    logging.disable()  # passes that fail are told of there
    if arguments.replay is not None:
        return _replay(arguments.replay, arguments.seed, arguments.operations)
    counts: Counter[str] = Counter()
    num_engine = arguments.operations // ENGINE_SHARE
    for level, num_operations in (("scheduler", arguments.operations - num_engine), ("engine", num_engine)):
        make, draw = LEVELS[level]
        progress = Progress(level, num_operations)
        try:
            found = simulate(
                make, draw, arguments.seed, num_operations, check_every=arguments.check_every, tell=progress
            )
        except ViolationError as violation:
            print(f"\n{violation}")
            return _replay(level, violation.seed, len(violation.operations))
        print(f"\n{level}: {dict(sorted(found.items()))}")
        counts += found
    print(f"{arguments.operations} operations, no violation")
    return 0


def _replay(level: str, seed: int, num_operations: int) -> int:
    """Plays an episode again, and makes it small if it fails."""
    make, draw = LEVELS[level]
    try:
        play(make, seed, draw(seed, num_operations))
    except ViolationError as violation:
        print(f"python -m tests.sim.simulate --replay {level} --seed {seed} --operations {num_operations}")
        print(f"{violation}\nshrunk to {shrunk(make, violation)}")
        return 1
    print("no violation")
    return 0


class Progress:
    """Tells how far it is, each second."""

    def __init__(self, level: str, total: int) -> None:
        self._level, self._total = level, total
        self._started = self._told = time.monotonic()

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if now - self._told >= 1.0 or done == self._total:
            self._told = now
            rate = done / max(now - self._started, 1e-9)
            print(f"\r{self._level}: {done:,} of {self._total:,}, {rate:,.0f} a second", end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
