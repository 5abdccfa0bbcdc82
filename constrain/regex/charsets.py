"""Sets of Unicode code points as sorted boundaries, the sets that Unicode properties name, and partitions by sets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import regex

from ..errors import quoted

SURROGATES: Final = (0xD800, 0xE000)
END: Final = 0x110000


class CharSet:
    """An immutable set of code points without surrogates.

    `boundaries` is strictly ascending; a code point belongs to the set if an odd number of them are at or below it, so
    `(97, 123)` is `a-z`.
    """

    __slots__ = ("_hash", "boundaries")

    def __init__(self, boundaries: tuple[int, ...]) -> None:
        self.boundaries = boundaries
        self._hash = hash(boundaries)

    @staticmethod
    def of(*parts: str | tuple[int, int]) -> CharSet:
        """The union of `parts`: the characters of a text, or a half-open range of code points."""
        ranges: list[tuple[int, int]] = []
        for part in parts:
            if isinstance(part, str):
                ranges.extend((ord(char), ord(char) + 1) for char in part)
            else:
                ranges.append(part)
        return CharSet.from_ranges(ranges)

    @staticmethod
    def single(char: str) -> CharSet:
        """One character; none if it is a surrogate."""
        point = ord(char)
        return CharSet((point, point + 1)) if not SURROGATES[0] <= point < SURROGATES[1] else EMPTY_SET

    @staticmethod
    def from_ranges(ranges: Iterable[tuple[int, int]]) -> CharSet:
        """The union of half-open ranges in any order; surrogates are left out."""
        boundaries: list[int] = []
        for start, stop in sorted(ranges):
            if boundaries and start <= boundaries[-1]:
                boundaries[-1] = max(boundaries[-1], stop)
            elif start < stop:
                boundaries += (start, stop)
        return CharSet(tuple(boundaries)) & ALL

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CharSet) and self.boundaries == other.boundaries

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"CharSet({', '.join(f'{start:#x}-{stop - 1:#x}' for start, stop in self.ranges())})"

    def __bool__(self) -> bool:
        return bool(self.boundaries)

    def __contains__(self, char: str) -> bool:
        return bool(bisect_right(self.boundaries, ord(char)) & 1)

    def __len__(self) -> int:
        return sum(self.boundaries[1::2]) - sum(self.boundaries[::2])

    def __iter__(self) -> Iterator[str]:
        for start, stop in self.ranges():
            yield from map(chr, range(start, stop))

    def __or__(self, other: CharSet) -> CharSet:
        return self._combined(other, union=True)

    def __and__(self, other: CharSet) -> CharSet:
        return self._combined(other, union=False)

    def __sub__(self, other: CharSet) -> CharSet:
        return self & ~other

    def __invert__(self) -> CharSet:
        """The code points outside of the set, surrogates not among them."""
        return CharSet(tuple(sorted(set(self.boundaries) ^ set(ALL.boundaries))))

    def __le__(self, other: CharSet) -> bool:
        return not self - other

    def ranges(self) -> Iterator[tuple[int, int]]:
        """The half-open ranges, ascending."""
        return zip(self.boundaries[::2], self.boundaries[1::2], strict=True)

    def first(self) -> str:
        """The lowest code point."""
        return chr(self.boundaries[0])

    def readable(self) -> str:
        """The member that reads best: a lower-case letter or digit where there is one."""
        if self.boundaries[0] > ord("~"):
            return self.first()
        return next((char for char in READABLE if char in self), self.first())

    def _combined(self, other: CharSet, *, union: bool) -> CharSet:
        a, b = self.boundaries, other.boundaries
        if a == b:
            return self
        if not a or not b:
            return (self if a else other) if union else EMPTY_SET
        found: list[int] = []
        inside = in_a = in_b = False
        i = j = 0
        while i < len(a) or j < len(b):
            point = min(a[i] if i < len(a) else END, b[j] if j < len(b) else END)
            if i < len(a) and a[i] == point:
                in_a, i = not in_a, i + 1
            if j < len(b) and b[j] == point:
                in_b, j = not in_b, j + 1
            now = (in_a or in_b) if union else (in_a and in_b)
            if now != inside:
                found.append(point)
                inside = now
        return CharSet(tuple(found))


ALL: Final = CharSet((0, *SURROGATES, END))
EMPTY_SET: Final = CharSet(())
READABLE: Final = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ _-./:@,+=#%?&!$'()*;<>[]^`{|}~"

DIGITS: Final = CharSet((0x30, 0x3A))
WORD: Final = CharSet((0x30, 0x3A, 0x41, 0x5B, 0x5F, 0x60, 0x61, 0x7B))
LINE_ENDS: Final = CharSet.of("\n\r\u2028\u2029")
SPACES: Final = CharSet.of("\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff", (0x2000, 0x200B))


@lru_cache(maxsize=256)
def property_set(name: str) -> CharSet:
    """The code points of a Unicode property as it stands in `\\p{name}`. Raises ValueError if there is none."""
    try:
        pattern = regex.compile(rf"\p{{{name}}}+")
    except regex.error as error:
        raise ValueError(f"there is no Unicode property {quoted(name)}") from error
    found = []
    for start, stop in ((0, SURROGATES[0]), (SURROGATES[1], END)):
        text = np.arange(start, stop, dtype="<u4").tobytes().decode("utf-32-le")
        found += [(start + match.start(), start + match.end()) for match in pattern.finditer(text)]
    return CharSet.from_ranges(found)


@lru_cache(maxsize=1)
def _case_classes() -> dict[str, CharSet]:
    """Characters that differ in case alone, by each of them (simple case folding)."""
    by_fold: dict[str, set[str]] = {}
    for char in property_set("Changes_When_Casemapped"):
        by_fold.setdefault(_folded(char), set()).add(char)
    return {char: CharSet.of("".join(members)) for members in by_fold.values() for char in members}


def _folded(char: str) -> str:
    folded = char.casefold()
    return folded if len(folded) == 1 else char.lower()


def ignoring_case(chars: CharSet) -> CharSet:
    """`chars` and what differs from one of them in case alone."""
    classes = _case_classes()
    cased = (
        (char for char in chars if char in classes)
        if len(chars) < len(classes)
        else filter(chars.__contains__, classes)
    )
    extra = [span for char in cased for span in classes[char].ranges()]
    return CharSet.from_ranges([*chars.ranges(), *extra])


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
