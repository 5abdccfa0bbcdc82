"""Work lists for a persistent kernel: ragged causal attention cut into ordered items of (queries x keys)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

ITEM_FIELDS = 8
QUERY_FIRST, NUM_QUERIES, TABLE_ROW, KV_START, KV_STOP, PARTIAL, KV_VISIBLE = range(7)
"""Columns of an item; the eighth is 0. See `WorkList`."""

OPEN_END = 2**31 - 1
"""Value of KV_STOP: the item runs to the last key its queries may see, wherever `query_limit` has moved to by then."""


PROGRAMS_PER_PROCESSOR: Mapping[int, int] = {16: 3, 64: 2, 128: 1}
"""Programs of the kernel that a multiprocessor runs side by side, by rows of their tiles."""

FIXED_BLOCK_M = 64
"""Rows of every tile where results may not depend on what else is computed: fair to prompts and to single tokens."""

FIXED_SPLIT = 2048
"""Tokens of a split there. Fewer would keep a GPU busier in short batches of long contexts, but a query of a prompt has
a partial result for each split of what is before it."""

SPLIT_ALIGNMENT = 128
"""Tokens: where keys are split, it is at multiples of this, and of the page size."""

_MIN_SPLIT = {16: 256, 64: 256, 128: 512}
"""Tokens, by rows of a tile: writing and merging the partial results of a shorter split costs more than it brings."""

_ITEM_COST = {16: 32, 64: 64, 128: 128}
"""Cost of an item besides its keys, in keys: filling the pipeline, writing the result. Twice that if partial."""

_MERGE_COST = {16: 64, 64: 96, 128: 256}
"""Cost of a launch that merges partial results, about 3 us, in keys."""

_SPLIT_STEPS = (1, 2, 4)
"""Splits are tried that are to keep all programs busy for so many turns."""

MAX_TURNS = _SPLIT_STEPS[-1]
"""Splits of a launch's tiles are no more than all programs take in so many turns."""

_GOOD_ENOUGH = 1.1
"""Load, in even shares of all keys: with no more in the busiest program, a better split is not worth looking for."""


@dataclass(frozen=True)
class WorkTiles:
    """The items of one launch of the kernel.

    block_m   rows of a tile, a row being one query of one head: 16, 64 or 128
    items     int32 [num_items, 8], the most costly first. Columns:
              QUERY_FIRST   index into `query_rows` of the item's first query
              NUM_QUERIES   at most block_m // group; 0: padding, the item is skipped
              TABLE_ROW     row of the page table that holds the keys
              KV_START      first key position, a multiple of the page size
              KV_STOP       position after the last key, or OPEN_END; what a query may not see is masked besides
              PARTIAL       row of `partial_out` for the first query, the others follow it; -1: this is the only item of
                            each of its queries, and it writes `out` itself
              KV_VISIBLE    keys before this position are visible to all queries of the item
    """

    block_m: int
    items: Int32


@dataclass(frozen=True)
class WorkList:
    """Attention of one step as items that can run in any order, and the merge that follows them.

    launches       one for each tile size there is, the largest tiles first; they share all that follows
    query_rows     int32, row of q and of `out` (token index) of each query of each item
    query_limit    int32 [T], position after the last key that token t may see
    num_partials   rows of partial_out [num_partials, H, D] and partial_lse [num_partials, H] (powers of two)
    merge_rows     int32 [N], tokens whose `out` row is the merge of partials
    merge_start    int32 [N + 1], borders in merge_partials of each of them
    merge_partials int32, partial rows, by rising key position
    """

    launches: tuple[WorkTiles, ...]
    query_rows: Int32
    query_limit: Int32
    num_partials: int
    merge_rows: Int32
    merge_start: Int32
    merge_partials: Int32


@dataclass(frozen=True)
class DeviceWork:
    """One launch of a `WorkList`, uploaded. Tensors are int32; their sizes are capacities, for a graph to hold them.

    items        [capacity, 8], columns as `WorkTiles` has them
    num_items    [1], how many of them count
    query_rows   [any], token of each query of each item
    query_limit  [T], position after the last key that token t may see; may be advanced in place between replays
    """

    items: torch.Tensor
    num_items: torch.Tensor
    query_rows: torch.Tensor
    query_limit: torch.Tensor


@dataclass(frozen=True)
class _Tiles:
    """Runs of neighbouring queries of one sequence that fit a tile, N of them; int64 arrays [N]."""

    block_m: Int64
    table_row: Int64
    first: Int64
    count: Int64
    first_limit: Int64
    last_limit: Int64


@dataclass(frozen=True)
class _Parts:
    """The keys of each tile, cut: `num_parts` [N]; all parts in order, [sum(num_parts)], with the tile of each."""

    num_parts: Int64
    tile: Int64
    start: Int64
    stop: Int64


def largest_block_m(head_dim: int, itemsize: int) -> int:
    """Rows of the largest tile that suits heads of `head_dim` elements, of `itemsize` bytes each in the queries."""
    return 128 if head_dim <= 128 and itemsize <= 2 else 64


def plan_extend(
    query_start: Int32,
    context_len: Int32,
    table_row: Int32,
    *,
    group: int,
    num_kv_heads: int,
    page_size: int,
    num_programs: int,
    max_block_m: int = 128,
    fixed_split: int | None = None,
) -> WorkList:
    """Work of B sequences whose newest tokens attend causally to all their tokens.

    query_start    int32 [B + 1], context_len int32 [B]: see AttentionBatch; sequences without queries are fine
    table_row      int32 [B], row of the page table that each sequence has
    group          query heads that share a key-value head, 1 to 16
    num_programs   multiprocessors of the GPU
    max_block_m    no larger tiles: see `largest_block_m`
    fixed_split    tokens. Keys are split at absolute multiples of it and all tiles are of one size: the result of a
                   query then depends on its own query, keys and position alone, to the bit

    A sequence's queries are cut into tiles of the size that suits their number. Where tiles are too few or too uneven
    to keep all programs busy, their keys are split too: a launch then has up to 4 * P / num_kv_heads items more than
    tiles, where P = num_programs * PROGRAMS_PER_PROCESSOR[block_m]. Of a tile with split keys all items are partial.

    Raises:
        ValueError: fixed_split is not a multiple of SPLIT_ALIGNMENT and page_size.
    """
    alignment = math.lcm(SPLIT_ALIGNMENT, page_size)
    if fixed_split is not None and (fixed_split <= 0 or fixed_split % alignment):
        raise ValueError(f"fixed_split must be a positive multiple of {alignment}, got {fixed_split}")
    num_queries = np.diff(query_start).astype(np.int64)
    limits = np.arange(1, num_queries.sum() + 1) + np.repeat(context_len - query_start[1:], num_queries)
    rows = num_queries * group
    if fixed_split is None:
        block_m = np.minimum(np.where(rows <= 16, 16, np.where(rows <= 64, 64, 128)), max_block_m)
    else:
        block_m = np.full(len(rows), FIXED_BLOCK_M)
    tiles = _cut_queries(query_start, num_queries, limits, block_m, table_row, group)
    if fixed_split is not None:
        parts = _cut_keys(tiles.last_limit, -(-tiles.last_limit // fixed_split), fixed_split)
        return _list_items(tiles, parts, limits)
    num_parts = np.ones_like(tiles.first)
    for size in np.unique(tiles.block_m).tolist():
        chosen = tiles.block_m == size
        programs = num_programs * PROGRAMS_PER_PROCESSOR[size]
        least = max(_MIN_SPLIT[size], alignment)
        num_parts[chosen] = _balance(tiles.last_limit[chosen], least, size, num_kv_heads, programs)
    return _list_items(tiles, _cut_evenly(tiles.last_limit, num_parts, alignment), limits)


def _cut_queries(
    query_start: Int32, num_queries: Int64, limits: Int64, block_m: Int64, table_row: Int32, group: int
) -> _Tiles:
    size = block_m // group
    sequence, index = _count_up(-(-num_queries // size))
    first = query_start[:-1][sequence] + index * size[sequence]
    count = np.minimum(size[sequence], query_start[1:][sequence] - first)
    last_limit = limits[first + count - 1]
    return _Tiles(block_m[sequence], table_row[sequence].astype(np.int64), first, count, limits[first], last_limit)


def _cut_keys(num_keys: Int64, num_parts: Int64, length: int) -> _Parts:
    """Parts of `length`; the last of each tile is what is left."""
    tile, part = _count_up(num_parts)
    start = part * length
    return _Parts(num_parts, tile, start, np.minimum(start + length, num_keys[tile]))


def _cut_evenly(num_keys: Int64, num_parts: Int64, alignment: int) -> _Parts:
    """Parts whose lengths differ by little more than the alignment of their borders; none is empty."""
    tile, part = _count_up(num_parts)
    start = part * num_keys[tile] // (num_parts[tile] * alignment) * alignment
    stop = np.append(start[1:], 0)
    stop[np.cumsum(num_parts) - 1] = num_keys
    return _Parts(num_parts, tile, start, stop)


def _count_up(counts: Int64) -> tuple[Int64, Int64]:
    """For counts 2, 3: [0 0 1 1 1] and [0 1 0 1 2]."""
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - (np.cumsum(counts) - counts)[which]


def _balance(num_keys: Int64, least: int, block_m: int, num_kv_heads: int, num_programs: int) -> Int64:
    """Returns how many parts, of `least` tokens, of the keys of each tile make the busiest program done the soonest."""
    share = int(num_keys.sum()) * num_kv_heads / num_programs
    most = np.maximum(num_keys // least, 1)
    best = np.ones_like(num_keys)
    best_time = _busiest(num_keys, best, block_m, num_kv_heads, num_programs)
    for step in _SPLIT_STEPS:
        if best_time <= _GOOD_ENOUGH * share:
            break
        num_parts = np.clip((num_keys * (step / share)).astype(np.int64), 1, most)
        time = _busiest(num_keys, num_parts, block_m, num_kv_heads, num_programs)
        if time < best_time:
            best, best_time = num_parts, time
    return best


def _busiest(num_keys: Int64, num_parts: Int64, block_m: int, num_kv_heads: int, num_programs: int) -> float:
    """Cost, in keys, of the program that has the most to do, and of the merge after it."""
    cost = num_keys / num_parts + _ITEM_COST[block_m] * np.where(num_parts > 1, 2, 1)
    order = np.argsort(-cost)
    units = np.repeat(cost[order], num_parts[order] * num_kv_heads)
    turns = np.zeros((-(-len(units) // num_programs), num_programs))
    turns.flat[: len(units)] = units
    turns[1::2] = turns[1::2, ::-1].copy()  # as the kernel takes them
    return float(turns.sum(axis=0).max()) + (_MERGE_COST[block_m] if num_parts.max() > 1 else 0)


def _list_items(tiles: _Tiles, parts: _Parts, limits: Int64) -> WorkList:
    """An item for each part of each tile, and the lists of partials to merge."""
    num_partials = np.where(parts.num_parts > 1, parts.num_parts * tiles.count, 0)
    tile, start, stop = parts.tile, parts.start, parts.stop
    count = tiles.count[tile]
    split = parts.num_parts[tile] > 1
    partial = np.where(split, np.cumsum(np.where(split, count, 0)) - count, -1)

    items = np.zeros((len(tile), ITEM_FIELDS), np.int32)
    items[:, QUERY_FIRST] = tiles.first[tile]
    items[:, NUM_QUERIES] = count
    items[:, TABLE_ROW] = tiles.table_row[tile]
    items[:, KV_START] = start
    items[:, KV_STOP] = stop
    items[:, PARTIAL] = partial
    items[:, KV_VISIBLE] = np.minimum(stop, tiles.first_limit[tile])

    order = np.lexsort((start - stop, -tiles.block_m[tile]))
    items, sizes = items[order], tiles.block_m[tile][order]
    borders = np.flatnonzero(np.diff(sizes, prepend=0, append=0)).tolist()
    launches = tuple(WorkTiles(int(sizes[a]), items[a:b]) for a, b in pairwise(borders))
    merge = _list_merges(tiles, parts, partial, limits)
    rows = np.arange(len(limits), dtype=np.int32)
    return WorkList(launches, rows, limits.astype(np.int32), int(num_partials.sum()), *merge)


def _list_merges(tiles: _Tiles, parts: _Parts, partial: Int64, limits: Int64) -> tuple[Int32, Int32, Int32]:
    """merge_rows, merge_start, merge_partials: of each query that has partials those in which it sees a key."""
    tile, index = _count_up(np.where(parts.num_parts > 1, tiles.count, 0))
    rows = tiles.first[tile] + index
    query, part = _count_up(parts.num_parts[tile])
    item = (np.cumsum(parts.num_parts) - parts.num_parts)[tile][query] + part
    seen = parts.start[item] < limits[rows[query]]
    start = np.append(0, np.cumsum(np.bincount(query[seen], minlength=len(rows))))
    partials = (partial[item] + index[query])[seen]
    return rows.astype(np.int32), start.astype(np.int32), partials.astype(np.int32)
