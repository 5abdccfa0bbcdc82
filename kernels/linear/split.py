"""Sharing one sum among several programs: each leaves its part, and the last one to arrive adds them in a fixed order.

What tells the last one is a counter, not the clock: parts are added 0, 1, 2, ... whoever adds them, so the result is
the same to the bit each time. The counter is 0 again afterwards, so that a CUDA graph can be replayed.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl

MAX_SPLITS = 16
_LATENCY = 3.0  # blocks that could have been computed while the first program's loads arrive
_START = 0.5  # and while any program starts and ends
_PART = 0.25  # blocks that could have been read in the time in which 16 rows of a part are written and read


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


def make_counters(num_rows: int, device: torch.device | str) -> torch.Tensor:
    """The `arrived` of a weight of `num_rows` rows, whose tiles have 64 or more."""
    return torch.zeros(triton.cdiv(num_rows, 64), dtype=torch.int32, device=device)
