"""Plans of tree decode attention: shared prefixes are read once for all their sequences, the rest by each sequence.

A prefix tree's paths as items of (queries x keys): Yao et al. 2024, DeFT (arXiv 2404.00242); Juravsky et al. 2024,
Hydragen (arXiv 2402.05099). Choice of the tree levels that get their own items, by a cost model, from the root down:
Pan et al. 2025, FastTree (MLSys).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..interface import SharedPrefix
from .padded_work import WorkCapacity
from .tree_cost import (
    MAX_SPLITS,
    Float64,
    HeadShape,
    Machine,
    TileCost,
    split_tiles,
    tile_costs,
)
from .work_list import (
    ITEM_FIELDS,
    KV_START,
    KV_STOP,
    KV_VISIBLE,
    NUM_QUERIES,
    OPEN_END,
    PARTIAL,
    QUERY_FIRST,
    SPLIT_ALIGNMENT,
    TABLE_ROW,
    Int32,
    WorkList,
    WorkTiles,
)

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MIN_SHARED = 64
"""Tokens: a level of the tree that adds fewer is read with the levels below it, whatever the cost model says."""

_FIRST, _COUNT, _TABLE_ROW, _START, _STOP, _VISIBLE, _IS_TAIL, _ALONE = range(8)
"""Rows of segments and tiles, int64 [8, N]: neighbouring queries and a run of keys that all of them see.

_FIRST, _COUNT   the queries
_TABLE_ROW       where the keys' pages are listed
_START, _STOP    the keys
_VISIBLE         keys before it are visible to the first query, hence to all
_IS_TAIL         1: queries of one sequence over what is left of it, which grows
_ALONE           1: no other segment has these queries
"""


@dataclass(frozen=True)
class TreePlan:
    """The items, and what the planner expects of them.

    work         one launch for each tile size there is
    item_s       for each launch, seconds of a multiprocessor for each of its items and one key-value head; falling
    num_levels   how many shared prefixes have items of their own; 0: this is decode attention without a tree
    kv_tokens    tokens that one layer reads from the cache
    row_tokens   (row of a tile, token) pairs of one key-value head, rows that only pad a tile included
    """

    work: WorkList
    item_s: tuple[Float64, ...]
    num_levels: int
    kv_tokens: int
    row_tokens: int


class TreePlanner:
    """Plans for layers of one shape on one machine.

    num_programs   tile rows (16, 64, 128) that a plan may use -> programs of a launch with them. A plan uses the
                   lowest for what fits into it, and one other for the rest
    window         of sliding-window layers: they read little of what is shared, so their plans leave sharing aside and
                   begin each sequence's keys where its window does
    """

    def __init__(
        self, shape: HeadShape, machine: Machine, num_programs: Mapping[int, int], *, window: int | None = None
    ) -> None:
        fitting = {block_m: num_programs[block_m] for block_m in sorted(num_programs) if block_m >= shape.group}
        if not fitting:
            raise ValueError(f"num_programs has no tile of {shape.group} rows or more, which one query takes")
        self._costs = tuple(tile_costs(shape, machine, fitting).values())
        self._shape = shape
        self._machine = machine
        self._window = window
        self._alignment = math.lcm(SPLIT_ALIGNMENT, shape.page_size)

    def plan(
        self,
        query_start: Int32,
        context_len: Int32,
        table_row: Int32,
        shared: Sequence[SharedPrefix],
        *,
        query_rows: Int32 | None = None,
        capacity: WorkCapacity | None = None,
    ) -> TreePlan:
        """The items for B sequences with T queries in all; every one of them has one query at least.

        query_start   int32 [B + 1]   as AttentionBatch has it
        context_len   int32 [B]       queries included. The last item of each sequence has an open end: the plan stays
                                      good while `query_limit` grows
        table_row     int32 [B]
        shared        see AttentionBatch.shared; positions beyond what all of a group's queries see are left out
        query_rows    int32 [T]       where in q and `out` each query is; as they come, if None. So sequences can be in
                                      an order in which sharers are neighbours, and stay where they are in the batch
        capacity      what the plan must fit into: if it does not, nothing is shared

        Raises:
            ValueError: `shared` has groups that overlap without one lying in the other.
        """
        plan = self._plan(query_start, context_len, table_row, shared, query_rows)
        if capacity is not None and plan.num_levels and not capacity.holds(plan.work):
            plan = self._plan(query_start, context_len, table_row, (), query_rows)
        return plan

    def capacity(self, num_queries: int, *, max_levels: int = 3) -> WorkCapacity:
        """Returns a capacity for plans of so many queries under trees of so many levels; deeper ones may not fit."""
        # Splits of a launch add up to the candidates' number for each multiprocessor, and one more a tile by rounding.
        num_splits = int(MAX_SPLITS * self._machine.num_sms / self._shape.num_kv_heads) + 1
        tiles = {self._costs[0].block_m, self._costs[-1].block_m}
        num_partials = (max_levels + 1) * num_queries + num_splits * sum(rows // self._shape.group for rows in tiles)
        block_m = tuple(cost.block_m for cost in reversed(self._costs))
        return WorkCapacity(block_m, num_queries, num_splits + (max_levels + 1) * num_queries, num_partials)

    def _plan(
        self,
        query_start: Int32,
        context_len: Int32,
        table_row: Int32,
        shared: Sequence[SharedPrefix],
        query_rows: Int32 | None,
    ) -> TreePlan:
        queries = _Queries(query_start.astype(np.int64), context_len.astype(np.int64), table_row)
        groups = _outer_first(shared if self._window is None else ())
        widths = queries.start[groups[:, 1]] - queries.start[groups[:, 0]]
        largest = max(int(widths.max(initial=0)), int(queries.counts.max(initial=0)))
        tiling = _Tiling.of(self._costs, self._shape, self._machine, largest)
        levels = self._levels(groups, queries, tiling)
        tiles, is_wide = tiling.cut(self._segments(levels, queries))
        items, tile_of, item_s = self._items(tiles, is_wide, tiling)
        num_partials, merge = _add_partials(items, queries.num_queries)

        launches, seconds = [], []
        for cost, mine in ((tiling.wide, is_wide[tile_of]), (tiling.small, ~is_wide[tile_of])):
            if mine.any():
                chosen = np.flatnonzero(mine)
                chosen = chosen[np.argsort(-item_s[chosen], kind="stable")]
                launches.append(WorkTiles(cost.block_m, items[chosen]))
                seconds.append(item_s[chosen])
        rows = np.arange(queries.num_queries, dtype=np.int32) if query_rows is None else query_rows
        limits = np.empty(queries.num_queries, np.int32)
        limits[rows] = queries.limits()
        work = WorkList(tuple(launches), rows, limits, num_partials, rows[merge[0]], merge[1], merge[2])
        length = tiles[_STOP] - tiles[_START]
        height = np.where(is_wide, tiling.wide.block_m, tiling.small.block_m)
        return TreePlan(work, tuple(seconds), levels.shape[1], int(length.sum()), int(length @ height))

    def _levels(self, groups: Int64, queries: _Queries, tiling: _Tiling) -> Int64:
        """Those of the groups that are worth items of their own: int64 [4, N], rows start, stop and keys start, stop.

        A group's keys are read once for all its queries, or, with what is below it, once for each group or sequence in
        it. The first costs items and partial results; the second, the reading.
        """
        if not len(groups):
            return np.empty((4, 0), np.int64)
        start, stop, num_pages = groups.T
        # A sequence keeps its newest key to itself, so that none is left with an empty item.
        seen = np.minimum.reduceat(np.append(queries.first_limit, 0), groups[:, :2].ravel())[::2] - 1
        kv_stop = np.minimum(num_pages, seen // self._shape.page_size) * self._shape.page_size
        parents = _parents(groups)
        read_s, fixed_s = tiling.seconds(queries.start[stop] - queries.start[start])
        alone_s = np.concatenate(([0.0], np.cumsum(tiling.seconds(queries.counts)[0])))
        alone_s = alone_s[stop] - alone_s[start]
        has_parent = parents >= 0
        saved = np.bincount(parents[has_parent], (alone_s - read_s)[has_parent], minlength=len(groups))
        gain_s = (alone_s - saved - read_s).tolist()  # a token
        chosen, chosen_start, total_s = [], [], 0.0
        done: list[int] = []  # where the keys of each group, with those of the groups around it, are read up to
        for index, (parent, end, gain, fixed) in enumerate(
            zip(parents.tolist(), kv_stop.tolist(), gain_s, fixed_s.tolist(), strict=True)
        ):
            begin = done[parent] if parent >= 0 else 0
            net_s = (end - begin) * gain - fixed
            if end - begin >= MIN_SHARED and net_s > 0:
                chosen.append(index)
                chosen_start.append(begin)
                total_s += net_s
                done.append(end)
            else:
                done.append(begin)
        # With no level at all, neither wide tiles nor a merge may be needed.
        if total_s * self._shape.num_kv_heads <= 2 * self._machine.launch_s:
            return np.empty((4, 0), np.int64)
        kept = np.array(chosen, np.int64)
        return np.stack([start[kept], stop[kept], np.array(chosen_start, np.int64), kv_stop[kept]])

    def _segments(self, levels: Int64, queries: _Queries) -> Int64:
        """The levels, outer ones first, and then what is left of each sequence."""
        num_levels, num_sequences = levels.shape[1], len(queries.counts)
        segments = np.empty((8, num_levels + num_sequences), np.int64)
        row_start, row_stop, kv_start, kv_stop = levels
        segments[_FIRST, :num_levels] = queries.start[row_start]
        segments[_COUNT, :num_levels] = queries.start[row_stop] - queries.start[row_start]
        segments[_TABLE_ROW, :num_levels] = queries.table_row[row_start]
        segments[_START, :num_levels] = kv_start
        segments[_STOP : _VISIBLE + 1, :num_levels] = kv_stop
        segments[_IS_TAIL : _ALONE + 1, :num_levels] = 0
        tails = segments[:, num_levels:]
        tails[_FIRST] = queries.start[:-1]
        tails[_COUNT] = queries.counts
        tails[_TABLE_ROW] = queries.table_row
        tails[_START] = 0 if self._window is None else np.maximum(queries.first_limit - self._window, 0)
        tails[_START] -= tails[_START] % self._alignment
        for first, last, end in zip(row_start.tolist(), row_stop.tolist(), kv_stop.tolist(), strict=True):
            tails[_START, first:last] = end  # inner levels come later
        tails[_STOP] = queries.context_len
        tails[_VISIBLE] = queries.first_limit
        tails[_IS_TAIL] = 1
        tails[_ALONE] = True if self._window is not None else tails[_START] == 0
        return segments

    def _items(self, tiles: Int64, is_wide: Bools, tiling: _Tiling) -> tuple[Int32, Int64, Float64]:
        """Tiles split along their keys: (items without PARTIAL, in the order of the tiles; tile of each; seconds)."""
        length = tiles[_STOP] - tiles[_START]
        counts, step = np.empty_like(length), np.empty_like(length)
        partial_s = tiles[_COUNT] * tiling.partial_s * self._shape.num_kv_heads
        token_s, fixed_s = np.empty(len(length)), np.empty(len(length))
        for cost, mine in ((tiling.wide, is_wide), (tiling.small, ~is_wide)):
            if mine.any():
                alone = tiles[_ALONE, mine] == 1
                counts[mine], step[mine] = split_tiles(
                    length[mine], partial_s[mine], alone, cost, self._shape.num_kv_heads, alignment=self._alignment
                )
                token_s[mine] = cost.token_s
                fixed_s[mine] = cost.overhead_s(int(counts[mine].sum()) * self._shape.num_kv_heads)
        tile_of, turn = _runs(counts)
        is_last = turn == counts[tile_of] - 1
        tile = tiles[:, tile_of]
        start = tile[_START] + turn * step[tile_of]
        stop = np.where(is_last, tile[_STOP], start + step[tile_of])
        items = np.zeros((len(tile_of), ITEM_FIELDS), np.int32)
        items[:, QUERY_FIRST] = tile[_FIRST]
        items[:, NUM_QUERIES] = tile[_COUNT]
        items[:, TABLE_ROW] = tile[_TABLE_ROW]
        items[:, KV_START] = start
        items[:, KV_STOP] = np.where(is_last & (tile[_IS_TAIL] == 1), OPEN_END, stop)
        items[:, PARTIAL] = np.where((tile[_ALONE] == 1) & (counts[tile_of] == 1), -1, 0)
        items[:, KV_VISIBLE] = np.minimum(tile[_VISIBLE], stop)
        return items, tile_of, fixed_s[tile_of] + token_s[tile_of] * (stop - start)


@dataclass(frozen=True)
class _Queries:
    """The queries of a batch; sequence b has start[b] .. start[b + 1] of them, its newest tokens."""

    start: Int64
    context_len: Int64
    table_row: Int32

    @cached_property
    def counts(self) -> Int64:
        return np.diff(self.start)

    @cached_property
    def first_limit(self) -> Int64:
        """[B] position after the last key that each sequence's first query sees."""
        return self.context_len - self.counts + 1

    @property
    def num_queries(self) -> int:
        return int(self.start[-1])

    def limits(self) -> Int64:
        """[T] position after the last key that each query sees."""
        return np.repeat(self.first_limit - self.start[:-1], self.counts) + np.arange(self.num_queries)


@dataclass(frozen=True)
class _Tiling:
    """Tiles of neighbouring queries: whole wide ones, and one for the rest, wide or small.

    partial_s   what one query's partial result costs, for one key-value head, in seconds of the whole machine
    """

    small: TileCost
    wide: TileCost
    group: int
    partial_s: float

    @classmethod
    def of(cls, costs: Sequence[TileCost], shape: HeadShape, machine: Machine, largest: int) -> _Tiling:
        """The lowest tile, and the lowest that holds `largest` queries if there is one."""
        wide = next((cost for cost in costs if cost.block_m >= largest * shape.group), costs[-1])
        return cls(costs[0], wide, shape.group, shape.partial_bytes / machine.bandwidth)

    def _num_tiles(self, count: Int64) -> tuple[Int64, Int64, Bools]:
        """For so many queries: whole wide tiles, what remains, and whether that takes a wide one too."""
        in_small, in_wide = self.small.block_m // self.group, self.wide.block_m // self.group
        full = np.where(count > in_small, count // in_wide, 0)
        rest = count - full * in_wide
        return full, rest, rest > in_small

    def seconds(self, count: Int64) -> tuple[Float64, Float64]:
        """Returns what `count` queries cost the whole machine, for one key-value head: per token, and besides."""
        full, rest, rest_is_wide = self._num_tiles(count)
        num_wide = full + rest_is_wide
        num_small = (rest > 0) & ~rest_is_wide
        small, wide = self.small, self.wide
        token_s = num_wide * (wide.token_s / wide.num_sms) + num_small * (small.token_s / small.num_sms)
        # Launches are taken to be full here: whether they are is not known before the items are.
        wide_s, small_s = (cost.overhead_s(cost.num_programs) / cost.num_sms for cost in (wide, small))
        item_s = num_wide * wide_s + num_small * small_s
        return token_s, item_s + count * self.partial_s

    def cut(self, segments: Int64) -> tuple[Int64, Bools]:
        """Tiles of the segments, in order, and which of them are wide."""
        full, rest, _ = self._num_tiles(segments[_COUNT])
        segment_of, turn = _runs(full + (rest > 0))
        tiles = segments[:, segment_of]
        in_wide = self.wide.block_m // self.group
        before = turn * in_wide
        tiles[_COUNT] = np.where(turn < full[segment_of], in_wide, rest[segment_of])
        tiles[_FIRST] += before
        # A sequence's later queries see more; those of a level all see all of it.
        tiles[_VISIBLE] += before
        tiles[_STOP] = np.where(tiles[_IS_TAIL] == 1, tiles[_VISIBLE] + tiles[_COUNT] - 1, tiles[_STOP])
        return tiles, tiles[_COUNT] > self.small.block_m // self.group


def _outer_first(shared: Sequence[SharedPrefix]) -> Int64:
    """[N, 3]: start, stop and num_pages of each group, outer before inner, from left to right."""
    groups = np.array([(group.start, group.stop, group.num_pages) for group in shared], np.int64).reshape(-1, 3)
    start, stop, num_pages = groups.T
    return groups[np.lexsort((num_pages, -stop, start))]


def _parents(groups: Int64) -> Int64:
    """Index of the innermost group around each, -1 for none; groups as `_outer_first` has them."""
    parents: list[int] = []
    around: list[tuple[int, int]] = []  # index and stop of the groups that the current one may lie in
    for index, (start, stop, _) in enumerate(groups.tolist()):
        while around and around[-1][1] <= start:
            around.pop()
        if around and stop > around[-1][1]:
            raise ValueError(f"shared groups must nest or be disjoint; rows {start} .. {stop} overlap another's")
        parents.append(around[-1][0] if around else -1)
        around.append((index, stop))
    return np.array(parents, np.int64)


def _runs(counts: Int64) -> tuple[Int64, Int64]:
    """For runs of so many elements: which run each element is in, and its place in it."""
    run = np.repeat(np.arange(len(counts)), counts)
    return run, np.arange(len(run)) - (np.cumsum(counts) - counts)[run]


def _add_partials(items: Int32, num_queries: int) -> tuple[int, tuple[Int64, Int32, Int32]]:
    """Gives each item that does not write `out` itself its partial rows. Returns how many there are, and the merge.

    The merge: queries that have partial results, the borders of each one's list, and the lists. A list is in the order
    of the items.
    """
    partial = np.flatnonzero(items[:, PARTIAL] >= 0)
    counts = items[partial, NUM_QUERIES].astype(np.int64)
    items[partial, PARTIAL] = np.cumsum(counts) - counts
    item, place = _runs(counts)
    query = items[partial, QUERY_FIRST][item] + place
    # The n-th (item, query) pair has the n-th partial row. 16-bit keys are sorted several times as fast.
    lists = np.argsort(query.astype(np.uint16) if num_queries <= 1 << 16 else query, kind="stable")
    num_partials = np.bincount(query, minlength=num_queries)
    merged = np.flatnonzero(num_partials)
    starts = np.concatenate(([0], np.cumsum(num_partials[merged])))
    return len(query), (merged, starts.astype(np.int32), lists.astype(np.int32))
