"""Shared reads: an order of a batch that puts sequences with common leading pages side by side, and their groups."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from ..interface import Int32, SharedPrefix

Pages: TypeAlias = "Int32 | array[int]"
"""Page ids of one sequence in order, 32 bits each."""

Name = TypeVar("Name", bound=Hashable)

_WORD = 4
"""Bytes of a page id."""


def order_by_prefix(pages: Sequence[Pages]) -> Int32:
    """A permutation that puts sequences next to each other if they have leading pages in common.

    Any two groups of sharers come out nested or disjoint. The order depends on the page ids alone; sequences with
    equal pages stay in the order given.
    """
    packed = [_pack(each) for each in pages]
    return np.array(sorted(range(len(packed)), key=packed.__getitem__), dtype=np.int32)


def find_shared(pages_in_order: Sequence[Pages], *, min_pages: int = 1) -> tuple[SharedPrefix, ...]:
    """The groups of neighbours with common leading pages, outer ones first, as AttentionBatch.shared wants them.

    pages_in_order   as `order_by_prefix` puts them: neighbours in any other order share less
    min_pages        a group is left out unless it has this many common pages more than the group around it
    """
    words = [np.frombuffer(_pack(each), np.int32) for each in pages_in_order]
    return _groups([_num_common(words[i], words[i + 1]) for i in range(len(words) - 1)], min_pages)


@dataclass(eq=False, slots=True)
class _Entry(Generic[Name]):
    """One sequence. Its pages are bytes, which compare faster than numbers do; entries are ordered by `key`."""

    name: Name
    pages: bytearray
    serial: int

    @property
    def key(self) -> tuple[bytearray, int]:
        return self.pages, self.serial

    @property
    def num_pages(self) -> int:
        return len(self.pages) // _WORD


class SharingIndex(Generic[Name]):
    """The same order and groups, kept up to date while sequences come, go and change.

    A change costs O(log B) comparisons and a look at the pages of that sequence and its two neighbours; `order` and
    `shared` cost O(B) after a change that matters and nothing otherwise. Pages that only one sequence can have need
    not be told: give it the pages that lie in the prefix cache. Sequences with equal pages are in the order they
    joined.
    """

    def __init__(self, *, min_pages: int = 1) -> None:
        self._min_pages = min_pages
        self._entries: list[_Entry[Name]] = []
        self._common: list[int] = []  # at i: leading pages that entries i and i + 1 have in common
        self._by_name: dict[Name, _Entry[Name]] = {}
        self._next_serial = 0
        self._order: tuple[Name, ...] | None = ()
        self._shared: tuple[SharedPrefix, ...] | None = ()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: Name) -> bool:
        return name in self._by_name

    def join(self, name: Name, pages: Pages) -> None:
        """Adds a sequence. Its pages are copied.

        Raises:
            ValueError: the name is taken.
        """
        if name in self._by_name:
            raise ValueError(f"sequence {name!r} has joined already; use `rewrite` to change its pages")
        entry = _Entry(name, bytearray(_pack(pages)), self._next_serial)
        self._next_serial += 1
        self._by_name[name] = entry
        self._insert(entry)

    def leave(self, name: Name) -> None:
        """Raises KeyError for a name that has not joined, as `grow` and `rewrite` do."""
        self._remove(self._locate(self._by_name.pop(name)))

    def grow(self, name: Name, pages: Pages) -> None:
        """Appends pages to those of a sequence."""
        entry = self._by_name[name]
        at = self._locate(entry)
        # Only if it is a prefix of the next one do more pages change the order or what the two have in common.
        if at < len(self._common) and self._common[at] == entry.num_pages:
            self._remove(at)
            entry.pages += _pack(pages)
            self._insert(entry)
        else:
            entry.pages += _pack(pages)

    def rewrite(self, name: Name, pages: Pages) -> None:
        """Replaces all pages of a sequence."""
        entry = self._by_name[name]
        packed = _pack(pages)
        if packed == entry.pages:
            return
        self._remove(self._locate(entry))
        entry.pages = bytearray(packed)
        self._insert(entry)

    def order(self) -> tuple[Name, ...]:
        """All names, sharers next to each other."""
        if self._order is None:
            self._order = tuple([entry.name for entry in self._entries])
        return self._order

    def shared(self) -> tuple[SharedPrefix, ...]:
        """The groups, as indices into `order()`."""
        if self._shared is None:
            self._shared = _groups(self._common, self._min_pages)
        return self._shared

    def _locate(self, entry: _Entry[Name]) -> int:
        return bisect_left(self._entries, entry.key, key=lambda other: other.key)

    def _insert(self, entry: _Entry[Name]) -> None:
        at = self._locate(entry)
        around = self._entries[max(at - 1, 0) : at + 1]
        self._entries.insert(at, entry)
        words = np.frombuffer(entry.pages, np.int32)
        common = [_num_common(words, np.frombuffer(other.pages, np.int32)) for other in around]
        # What the two neighbours have in common with each other gives way to what each has with the new one.
        self._common[max(at - 1, 0) : at] = common
        self._order = self._shared = None

    def _remove(self, at: int) -> None:
        del self._entries[at]
        # Entries are sorted: what its two neighbours have in common is what both have in common with it.
        around = self._common[max(at - 1, 0) : at + 1]
        self._common[max(at - 1, 0) : at + 1] = [min(around)] if len(around) == 2 else []
        self._order = self._shared = None


def _pack(pages: Pages) -> bytes:
    if pages.itemsize != _WORD:
        raise ValueError(f"page ids must be 32-bit integers, got items of {pages.itemsize} bytes")
    return pages.tobytes()


def _num_common(a: Int32, b: Int32) -> int:
    """Length of the common prefix."""
    size = min(len(a), len(b))
    if size == 0 or a[0] != b[0]:
        return 0
    differs = a[:size] != b[:size]
    first = int(differs.argmax())
    return first if differs[first] else size


def _groups(common: Sequence[int], min_pages: int) -> tuple[SharedPrefix, ...]:
    """The tree of maximal runs of rows with something in common.

    common   at i: leading pages that rows i and i + 1 have in common
    """
    found: list[tuple[int, int, int]] = []  # start, -stop, num_pages
    open_runs: list[tuple[int, int]] = []  # start, num_pages, growing
    for row, num_pages in enumerate((*common, 0)):
        start = row
        while open_runs and open_runs[-1][1] > num_pages:
            start, depth = open_runs.pop()
            found.append((start, -row - 1, depth))
        if num_pages > (open_runs[-1][1] if open_runs else 0):
            open_runs.append((start, num_pages))
    found.sort()  # outer before inner, from left to right
    kept: list[SharedPrefix] = []
    around: list[SharedPrefix] = []  # the groups that the current one lies in
    for start, minus_stop, num_pages in found:
        while around and around[-1].stop <= start:
            around.pop()
        if num_pages - (around[-1].num_pages if around else 0) >= min_pages:
            kept.append(SharedPrefix(start, -minus_stop, num_pages))
            around.append(kept[-1])
    return tuple(kept)
