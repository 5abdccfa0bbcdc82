"""Tiles of a product, each computed by one program, or by several that share its sum.

Each of these stores its part, and the last one to arrive, as found by a counter, adds them in the fixed order 0, 1, 2,
..., so that the result is the same to the bit each time. The counter is 0 again afterwards, so that a CUDA graph can be
replayed.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
import triton.language as tl

from ..processor import num_processors

MAX_SPLITS = 16
_LATENCY = 3.0  # blocks that could have been computed while the first program's loads arrive
_START = 0.5  # and while any program starts and ends
_PART = 0.25  # blocks that could have been read in the time in which 16 rows of a part are written and read


@dataclass(frozen=True)
class Tile:
    """`t` rows of x by `m` rows of weight; `n` terms of the sum at a time, where the weight's format does not say."""

    t: int
    m: int
    num_warps: int
    num_stages: int
    n: int = 128


def choose_tile(tiles: Sequence[Tile], num_rows: int) -> Tile:
    """Returns the first of `tiles` that holds so many rows of x, or the last."""
    return next((tile for tile in tiles if num_rows <= tile.t), tiles[-1])


@dataclass(frozen=True)
class Cut:
    """A product's programs.

    grid     tiles of the weight, programs that share a tile's sum, tiles of x
    each     blocks of the sum that a program adds
    parts    [tiles, splits, t, m]: what programs leave for one another; empty where none share
    """

    grid: tuple[int, int, int]
    each: int
    parts: torch.Tensor

    @property
    def splits(self) -> bool:
        return self.grid[1] > 1


def cut_product(
    x: torch.Tensor, width: int, blocks: int, tile: Tile, arrived: torch.Tensor, *, dtype: torch.dtype, splits: bool
) -> Cut:
    """Cuts the product of `x` [T, N] with a weight of `width` rows, whose sums have `blocks` blocks.

    arrived    make_counters(width)
    dtype      of the sums
    splits     whether programs may share one; only rows that fit one tile do
    """
    each = blocks
    if len(x) <= tile.t and splits:
        _, each = choose_splits(triton.cdiv(width, tile.m), blocks, num_processors(x.device), tile.t)
    return cut_blocks(x, width, blocks, each, tile, arrived, dtype=dtype)


def cut_blocks(
    x: torch.Tensor, width: int, blocks: int, each: int, tile: Tile, arrived: torch.Tensor, *, dtype: torch.dtype
) -> Cut:
    """Cuts as cut_product does, with `each` blocks of a sum for a program: all, if the rows fill several tiles."""
    tiles, num_splits = triton.cdiv(width, tile.m), triton.cdiv(blocks, each)
    assert num_splits == 1 or (len(x) <= tile.t and arrived.numel() >= tiles)
    parts = torch.empty((tiles * num_splits, tile.t, tile.m) if num_splits > 1 else 0, dtype=dtype, device=x.device)
    return Cut((tiles, num_splits, triton.cdiv(len(x), tile.t)), each, parts)


@triton.jit
def place(M, BLOCK_T: tl.constexpr, BLOCK_M: tl.constexpr):
    """Rows of x [BLOCK_T], and of the weight [BLOCK_M]: that a program computes, and that it reads.

    Past the last row of weight that row is read again: this needs no mask, and nobody stores what comes of it.
    """
    t = tl.program_id(2) * BLOCK_T + tl.arange(0, BLOCK_T)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    return t, m, tl.minimum(m, M - 1)


@triton.jit
def store_product(total, bias, out, t, m, row, T, M, BIAS: tl.constexpr):
    """Stores float32 sums [BLOCK_M, BLOCK_T], plus the bias [M], if any, in `out` [T, M]; t, m, row: from `place`."""
    if BIAS:
        total += tl.load(bias + row).to(tl.float32)[:, None]
    out_at = out + t.to(tl.int64)[None, :] * M + m[:, None]
    tl.store(out_at, total.to(out.dtype.element_ty), mask=(t < T)[None, :] & (m < M)[:, None])


@triton.jit
def add_parts(
    acc,  # [BLOCK_M, BLOCK_T] this program's part, float32 or int32
    parts,  # [tiles, splits, BLOCK_T, BLOCK_M] of the dtype of acc; read with SPLIT only
    arrived,  # [tiles] int32, 0
    T,
    tile,
    split,
    splits,
    BLOCK_M: tl.constexpr,
    BLOCK_T: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """(the sum, whether it is complete): without SPLIT it is `acc`; else one program of each tile gets it."""
    complete = True
    if SPLIT:
        inner = tl.arange(0, BLOCK_T)[None, :] * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
        has_row = (tl.arange(0, BLOCK_T) < T)[None, :]
        first = parts + tile * splits * (BLOCK_M * BLOCK_T) + inner
        tl.store(first + split * (BLOCK_M * BLOCK_T), acc, mask=has_row)
        # All threads' parts are written before the one that counts releases them.
        tl.debug_barrier()
        place = tl.atomic_add(arrived + tile, 1, sem="acq_rel", scope="gpu")
        complete = place == splits - 1
        if complete:
            acc = tl.zeros([BLOCK_M, BLOCK_T], acc.dtype)
            for part in range(splits):
                acc += tl.load(first + part * (BLOCK_M * BLOCK_T), mask=has_row, other=0, cache_modifier=".cg")
            tl.atomic_xchg(arrived + tile, 0, sem="relaxed", scope="gpu")
    return acc, complete


@lru_cache(maxsize=1024)
def choose_splits(tiles: int, blocks: int, processors: int, block_t: int) -> tuple[int, int]:
    """(splits, blocks each) that finish first: rounds of programs times their blocks, and what splitting costs.

    Depends on the shapes of the weight and of the tile alone, not on how many rows of the tile are used.
    """

    def cost(each: int) -> float:
        splits: int = triton.cdiv(blocks, each)
        rounds: int = triton.cdiv(tiles * splits, processors)
        # Where several programs share a multiprocessor, one computes while another waits.
        latency = _LATENCY if rounds == 1 else _LATENCY / 2
        return rounds * (each + _START) + latency + (splits - 1) * _PART * block_t / 16

    candidates = sorted({triton.cdiv(blocks, splits) for splits in range(1, min(MAX_SPLITS, blocks) + 1)}, reverse=True)
    each = min(candidates, key=cost)
    return triton.cdiv(blocks, each), each


def make_counters(num_rows: int, device: torch.device | str, *, tile_rows: int = 64) -> torch.Tensor:
    """The `arrived` of a weight of `num_rows` rows, whose tiles have `tile_rows` or more."""
    return torch.zeros(triton.cdiv(num_rows, tile_rows), dtype=torch.int32, device=device)
