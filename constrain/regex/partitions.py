"""Partitions of all characters by which sets they are in."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from .charsets import ALL, READABLE, CharSet


class Partition(NamedTuple):
    """All characters, parted so that those of one class need not be told apart.

    points      where runs of characters of one class begin, ascending
    numbers     the class of each run
    examples    of each class the character that reads best; classes of letters and digits come first
    sets        the classes
    """

    points: tuple[int, ...]
    numbers: tuple[int, ...]
    examples: tuple[str, ...]
    sets: tuple[CharSet, ...]

    def number(self, char: str) -> int:
        """The class of `char`."""
        return self.numbers[bisect_right(self.points, ord(char)) - 1]


@lru_cache(maxsize=2048)
def partition(sets: frozenset[CharSet]) -> Partition:
    """The fewest classes that part all characters so that each lies wholly inside or outside of each of `sets`."""
    toggles: dict[int, int] = {}
    for index, members in enumerate((ALL, *sorted(sets, key=_boundaries))):
        for point in members.boundaries:
            toggles[point] = toggles.get(point, 0) ^ (1 << index)
    signature = 0
    spans: dict[int, list[int]] = {}
    runs: list[tuple[int, int]] = []
    ascii_only = [0] * 128
    for start, stop in pairwise(sorted(toggles)):
        signature ^= toggles[start]
        if signature & 1:
            boundaries = spans.setdefault(signature, [])
            if boundaries and boundaries[-1] == start:
                boundaries[-1] = stop
            else:
                boundaries += (start, stop)
            runs.append((start, signature))
            if start < 128:
                ascii_only[start:stop] = [signature] * (min(stop, 128) - start)
    examples: dict[int, str] = {}
    for char in READABLE:
        examples.setdefault(ascii_only[ord(char)], char)
    for signature, boundaries in spans.items():
        examples.setdefault(signature, chr(boundaries[0]))
    numbers = {signature: number for number, signature in enumerate(examples)}
    return Partition(
        tuple([start for start, _ in runs]),
        tuple([numbers[signature] for _, signature in runs]),
        tuple(examples.values()),
        tuple([CharSet(tuple(spans[signature])) for signature in examples]),
    )


def classes(sets: Iterable[CharSet]) -> tuple[CharSet, ...]:
    """The classes of `partition`."""
    return partition(frozenset(sets)).sets


def _boundaries(members: CharSet) -> tuple[int, ...]:
    return members.boundaries
