"""Work lists in memory of a fixed size, so that a CUDA graph can hold its addresses and one copy uploads a new list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from .work_list import ITEM_FIELDS, Int32, WorkList


class _Array(Protocol):
    """The interface that numpy arrays and torch tensors have in common."""

    def __getitem__(self, index: slice, /) -> Any: ...


Array = TypeVar("Array", bound=_Array)


@dataclass(frozen=True)
class PaddedLaunch(Generic[Array]):
    """items int32 [capacity, 8], of which num_items int32 [1] count."""

    items: Array
    num_items: Array


@dataclass(frozen=True)
class PaddedWork(Generic[Array]):
    """A work list as views of one buffer, see `WorkList`; what lies past the counts is not to be read.

    launches         block_m -> the launch with that tile; all there are, in the order to launch them, also the empty
    num_merges       [1]   how many of merge_rows count
    """

    launches: Mapping[int, PaddedLaunch[Array]]
    query_rows: Array
    num_merges: Array
    merge_rows: Array
    merge_start: Array
    merge_partials: Array
    query_limit: Array


@dataclass(frozen=True)
class WorkCapacity:
    """Capacity of a buffer.

    block_m        tile sizes, the largest first
    num_queries    T
    num_items      of each launch
    num_partials   rows of partial results
    """

    block_m: tuple[int, ...]
    num_queries: int
    num_items: int
    num_partials: int

    @property
    def size(self) -> int:
        """Numbers (int32) in a buffer."""
        launch = _aligned(ITEM_FIELDS * self.num_items) + _aligned(1)
        queries = 3 * _aligned(self.num_queries) + _aligned(self.num_queries + 1) + _aligned(1)
        return len(self.block_m) * launch + queries + _aligned(self.num_partials)

    @property
    def limit_start(self) -> int:
        """Returns where query_limit begins in a buffer. It comes last: a device may advance it by itself."""
        return self.size - _aligned(self.num_queries)

    def holds(self, work: WorkList) -> bool:
        return (
            all(launch.block_m in self.block_m and len(launch.items) <= self.num_items for launch in work.launches)
            and len(work.query_rows) <= self.num_queries
            and work.num_partials <= self.num_partials
        )

    def views(self, buffer: Array) -> PaddedWork[Array]:
        """The parts of an int32 buffer of `size` numbers: a numpy array, or a tensor on any device."""
        taken = 0

        def take(count: int) -> Any:
            nonlocal taken
            start, taken = taken, taken + _aligned(count)
            return buffer[start : start + count]

        launches = {}
        for block_m in self.block_m:
            items = take(ITEM_FIELDS * self.num_items).reshape(self.num_items, ITEM_FIELDS)
            launches[block_m] = PaddedLaunch(items, take(1))
        return PaddedWork(
            launches,
            query_rows=take(self.num_queries),
            num_merges=take(1),
            merge_rows=take(self.num_queries),
            merge_start=take(self.num_queries + 1),
            merge_partials=take(self.num_partials),
            query_limit=take(self.num_queries),
        )


def _aligned(count: int) -> int:
    """`count` numbers and what follows them up to 16 bytes, the alignment kernels are compiled for."""
    return -(-count // 4) * 4


def write_padded(work: WorkList, capacity: WorkCapacity, buffer: Int32) -> None:
    """Writes a work list into a buffer of `capacity.size` numbers; what it does not need of it stays as it was.

    Raises:
        ValueError: the list is larger than the capacity.
    """
    if not capacity.holds(work):
        sizes = {launch.block_m: len(launch.items) for launch in work.launches}
        raise ValueError(
            f"a work list of {len(work.query_rows)} queries, {sizes} items by tile and {work.num_partials} partial "
            f"results does not fit into {capacity}"
        )
    padded = capacity.views(buffer)
    for launch in padded.launches.values():
        launch.num_items[0] = 0
    for tiles in work.launches:
        launch = padded.launches[tiles.block_m]
        launch.items[: len(tiles.items)] = tiles.items
        launch.num_items[0] = len(tiles.items)
    padded.num_merges[0] = len(work.merge_rows)
    padded.merge_rows[: len(work.merge_rows)] = work.merge_rows
    padded.merge_start[: len(work.merge_start)] = work.merge_start
    padded.merge_partials[: len(work.merge_partials)] = work.merge_partials
    padded.query_rows[: len(work.query_rows)] = work.query_rows
    padded.query_limit[: len(work.query_limit)] = work.query_limit
