"""Operations of a simulation as data: drawn from a seed, replayed one by one, and made few when they show a failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from random import Random
from typing import Protocol, TypeVar

T = TypeVar("T")

Operation = tuple[str, int]
"""Name, and the bits by which it is decided to whom and how it happens: so it means something in any state."""

_MULTIPLIER, _INCREMENT, _MASK = 6364136223846793005, 1442695040888963407, (1 << 64) - 1


class World(Protocol):
    """Subject of a simulation, in one episode from empty to empty."""

    counts: Counter[str]

    def do(self, operation: Operation) -> None:
        """Does one operation; nothing, where it does not apply."""

    def check(self) -> None:
        """Recounts everything. Raises AssertionError: a promise is broken."""

    def settle(self) -> None:
        """After the last fault: all must end in time, and nothing be left."""


class Dice:
    """Decisions that follow from the bits of one operation."""

    __slots__ = ("_state",)

    def __init__(self, bits: int) -> None:
        self._state = bits

    def below(self, count: int) -> int:
        self._state = (self._state * _MULTIPLIER + _INCREMENT) & _MASK
        return (self._state >> 33) % count

    def one_in(self, count: int) -> bool:
        return self.below(count) == 0

    def pick(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]


def draw(random: Random, mix: Mapping[str, float], num_operations: int) -> list[Operation]:
    """Returns so many operations, each as likely as `mix` says. Of fewer operations it returns the first ones."""
    names, bounds = list(mix), list(accumulate(mix.values()))
    return [(random.choices(names, cum_weights=bounds)[0], random.getrandbits(62)) for _ in range(num_operations)]


def shrink(
    operations: Sequence[Operation], fails: Callable[[Sequence[Operation]], bool], *, max_replays: int = 500
) -> list[Operation]:
    """Returns a subsequence that still fails and of which none can be left out (delta debugging; Zeller and
    Hildebrandt, IEEE TSE 28(2), 2002); one that is not minimal where that takes more than `max_replays`."""
    kept = list(operations)
    size = max(len(kept) // 2, 1)
    left = max_replays
    while left > 0:
        start, shorter = 0, False
        while start < len(kept) and left > 0:
            without = kept[:start] + kept[start + size :]
            left -= 1
            if fails(without):
                kept, shorter = without, True
            else:
                start += size
        if size == 1 and not shorter:
            break
        size = size if shorter and size == 1 else max(size // 2, 1)
    return kept
