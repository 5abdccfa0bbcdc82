"""Attention over a work list: a persistent kernel that serves prefill, extension and shared-prefix decode.

Floors: an item of n queries over s keys reads 2 * s * D cache elements for each key-value head and does
4 * n * g * s * D FLOPs (g = H / G query heads share a key-value head; their rows fill one tile together). So few
queries over a long prefix are bound by memory, and a long prompt by tensor cores: 4 * H * D * (T * P + T^2 / 2) FLOPs
for T new tokens after P. Next come the exponentials: on an H100 those of a tile take half as long as its products at
D = 128.

Online softmax over tiles: Dao 2023, FlashAttention-2 (arXiv 2307.08691). Paged layout: Kwon et al. 2023 (arXiv
2309.06180). Items of (queries x keys) with partial results to merge: Ye et al. 2025, FlashInfer (arXiv 2501.01005).
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from dataclasses import replace
from itertools import product

import torch
import triton
import triton.language as tl

from ..compile_case import CompileCase
from ..processor import is_roomy, num_processors
from .inner_loop import LOG2_E, KeyTile, as_factors, attend_pages
from .plan.work_list import PROGRAMS_PER_PROCESSOR, DeviceWork


@triton.jit(do_not_specialize=["table_stride", "window"], do_not_specialize_on_alignment=["k_scale", "v_scale"])
def _work_kernel(
    q,  # [T, H, D], tokens query_stride apart
    keys,  # [num_slots, G, D]
    values,
    out,  # [T, H, D]
    partial_out,  # float32 [num_partials, H, D]
    partial_lse,  # float32 [num_partials, H], in powers of two
    items,  # int32 [capacity, 8]
    num_items,  # int32 [1]
    query_rows,  # int32
    query_limit,  # int32 [T]
    page_table,  # int32 [R, table_stride]
    k_scale,  # float32 [G], or None
    v_scale,
    query_stride,
    table_stride,
    scale,  # of scores; times LOG2_E unless SOFTCAP
    window,  # read with WINDOW
    softcap,  # read with SOFTCAP
    G: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """Each program takes units, an item for one key-value head, longest first. Row of a tile = query * GROUP + head."""
    program = tl.program_id(0)
    num_programs = tl.num_programs(0)
    num_units = tl.load(num_items) * G
    d = tl.arange(0, D_PAD)
    row = tl.arange(0, BLOCK_M)
    for turn in tl.range(0, tl.cdiv(num_units, num_programs), disable_licm=True):
        # Every other turn runs backwards: who had the longest unit of one turn has the shortest of the next.
        unit = turn * num_programs + tl.where(turn % 2 == 0, program, num_programs - 1 - program)
        if unit < num_units:
            item = items + unit // G * 8
            head = unit % G
            query_first = query_rows + tl.load(item)
            num_rows = tl.load(item + 1) * GROUP
            pages = page_table + tl.load(item + 2).to(tl.int64) * table_stride
            kv_start = tl.load(item + 3)

            token = tl.load(query_first + row // GROUP, mask=row < num_rows, other=0).to(tl.int64)
            limit = tl.load(query_limit + token, mask=row < num_rows, other=0)
            query_at = token * query_stride + (head * GROUP + row % GROUP) * D
            kept = (row < num_rows)[:, None] & (d < D)[None, :]
            queries = tl.load(q + query_at[:, None] + d[None, :], mask=kept, other=0.0)
            score_scale = scale
            if k_scale is not None:
                score_scale = scale * tl.load(k_scale + head)

            last = tl.max(limit, 0)
            start = kv_start
            clear_start = kv_start
            if WINDOW:
                clear_start = last - window
                lowest = tl.min(tl.where(row < num_rows, limit, 2147483647), 0) - window
                start += tl.maximum(lowest - kv_start, 0) // BLOCK_N * BLOCK_N
            stop = tl.minimum(tl.load(item + 4), last)
            acc, top, total = attend_pages(
                as_factors(queries, keys.dtype.element_ty),
                tl.zeros([BLOCK_M, D_PAD], tl.float32),
                tl.full([BLOCK_M], float("-inf"), tl.float32),
                tl.zeros([BLOCK_M], tl.float32),
                keys + head * D,
                values + head * D,
                pages,
                start,
                stop,
                limit - window,
                limit,
                G * D,
                score_scale,
                softcap,
                D,
                D_PAD,
                PAGE,
                BLOCK_N,
                False,
                WINDOW,
                SOFTCAP,
                STAGES,
                clear_start,
                tl.minimum(tl.load(item + 6), stop),
            )
            share = tl.where(total > 0, 1.0 / total, 0.0)
            if v_scale is not None:
                share = share * tl.load(v_scale + head)
            acc = acc * share[:, None]
            query_head = head * GROUP + row % GROUP
            kept = (row < num_rows)[:, None] & (d < D)[None, :]
            partial = tl.load(item + 5)
            if partial < 0:
                # Read again, so that no registers hold them through the loops.
                token = tl.load(query_first + row // GROUP, mask=row < num_rows, other=0).to(tl.int64)
                out_at = (token * (G * GROUP) + query_head) * D
                tl.store(out + out_at[:, None] + d[None, :], acc.to(out.dtype.element_ty), mask=kept)
            else:
                partial_at = (partial + row // GROUP).to(tl.int64) * (G * GROUP) + query_head
                tl.store(partial_out + (partial_at * D)[:, None] + d[None, :], acc, mask=kept)
                lse = tl.where(total > 0, top + tl.log2(total), float("-inf"))
                tl.store(partial_lse + partial_at, lse, mask=row < num_rows)


_TILES = {
    (16, 4, 64): KeyTile(32, 2, 8),
    (16, 4, 128): KeyTile(32, 2, 8),
    (16, 4, 256): KeyTile(16, 2, 8),
    (64, 4, 64): KeyTile(16, 2, 8),
    (64, 4, 128): KeyTile(16, 2, 8),
    (64, 4, 256): KeyTile(16, 2, 8),
    (16, 2, 64): KeyTile(64, 4, 4),
    (16, 2, 128): KeyTile(64, 3, 4),
    (16, 2, 256): KeyTile(32, 3, 4, 168),
    (64, 2, 64): KeyTile(64, 4, 4),
    (64, 2, 128): KeyTile(32, 4, 4),
    (64, 2, 256): KeyTile(32, 3, 8),
    (128, 2, 64): KeyTile(64, 4, 8),
    (128, 2, 128): KeyTile(64, 3, 8),
    (128, 2, 256): KeyTile(16, 3, 8),
    (16, 1, 64): KeyTile(64, 4, 4),
    (16, 1, 128): KeyTile(64, 4, 4, 168),
    (16, 1, 256): KeyTile(32, 4, 4),
    (64, 1, 64): KeyTile(64, 4, 4),
    (64, 1, 128): KeyTile(32, 4, 4),
    (64, 1, 256): KeyTile(32, 3, 8),
    (128, 1, 64): KeyTile(64, 3, 8),
    (128, 1, 128): KeyTile(32, 4, 8),
    (128, 1, 256): KeyTile(16, 3, 8),
}
"""By rows of a tile, bytes of a cache element and padded head size. None spills on a target of `compile_check`, but for
float32, by 56 bytes at most, which is not multiplied on tensor cores anyway.

Large tiles have the whole multiprocessor: their own loads, two tiles ahead, hide the latency. Small ones share it with
others (`PROGRAMS_PER_PROCESSOR`), which keep 96 KiB of reads in flight together; 33 KiB cover 1 us at 4.3 TB/s. With
168 registers a thread three programs of four warps fit: the limit stands where the compiler would take more, but for
heads of 256 in 8 bits, which would spill."""


_TIGHT_TILES = {(128, 2, 128): KeyTile(32, 3, 8), (64, 2, 256): KeyTile(32, 2, 8)}
"""In place of those that need more than 99 KiB of shared memory, on GPUs whose programs may have no more."""


def _choose_tile(block_m: int, d_pad: int, itemsize: int, *, roomy: bool = True) -> KeyTile:
    """Raises ValueError where there is none."""
    key = block_m, itemsize, max(64, d_pad)
    tile = _TILES.get(key) if roomy else _TIGHT_TILES.get(key, _TILES.get(key))
    if tile is None:
        raise ValueError(f"no tile of {block_m} rows for heads of {d_pad} elements, {itemsize} bytes each in the cache")
    return tile


def work_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    out: torch.Tensor,
    *,
    work: DeviceWork,
    block_m: int,
    page_table: torch.Tensor,
    page_size: int,
    scale: float,
    partial_out: torch.Tensor,
    partial_lse: torch.Tensor,
    window: int | None = None,
    softcap: float | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    num_programs: int | None = None,
) -> None:
    """Runs all items of one launch; keys and values of the step are in the cache already.

        q             [T, H, D]          float16 | bfloat16 | float32; dense but for stride(0)
        out           [T, H, D]          contiguous
        keys, values  [num_slots, G, D]  the dtype of `q`, or float8_e4m3fn; contiguous; H / G is 1 .. 16
        block_m       16, 64 or 128: as the items were planned, see `work_list.largest_block_m`
        page_table    [R, P] int32       page ids in order; what is past a context is not read
        scale         of scores, more than 0
        partial_out   [num_partials, H, D] float32, contiguous; no rows where every item has PARTIAL -1
        partial_lse   [num_partials, H]    float32, contiguous
        k_scale, v_scale  [G] float32, more than 0: what stored keys and values are to be multiplied by; None: 1
        num_programs  size of the grid; None: what the GPU runs at once

    `window`, `softcap`: see AttentionLayer. Scores, softmax and sums are float32. Rows of `out` and of the
    partials that no item names stay as they are. Partials hold results normalised by their own sum of weights and the
    base-2 logarithm of that sum, 0 and -inf where a query sees nothing; `out` is 0 then.

    Raises:
        ValueError: no tile of `block_m` rows for this head size and dtype.
    """
    num_heads, head_dim = q.shape[1:]
    num_kv_heads = keys.shape[1]
    d_pad = max(16, triton.next_power_of_2(head_dim))
    tile = _choose_tile(block_m, d_pad, keys.element_size(), roomy=is_roomy(q.device))
    if num_programs is None:
        num_programs = num_processors(q.device) * PROGRAMS_PER_PROCESSOR[block_m]
    grid = min(num_programs, work.items.shape[0] * num_kv_heads)
    if grid == 0:
        return
    _work_kernel[(grid,)](
        q,
        keys,
        values,
        out,
        partial_out,
        partial_lse,
        work.items,
        work.num_items,
        work.query_rows,
        work.query_limit,
        page_table,
        k_scale,
        v_scale,
        q.stride(0),
        page_table.stride(0),
        scale if softcap is not None else scale * LOG2_E,
        window or 0,
        softcap or 0.0,
        **_constants(block_m, num_heads // num_kv_heads, num_kv_heads, head_dim, page_size, tile),
        WINDOW=window is not None,
        SOFTCAP=softcap is not None,
        num_warps=tile.num_warps,
        num_stages=1,
        maxnreg=tile.max_registers,
    )


def _constants(
    block_m: int, group: int, num_kv_heads: int, head_dim: int, page_size: int, tile: KeyTile
) -> dict[str, int]:
    return {
        "G": num_kv_heads,
        "GROUP": group,
        "D": head_dim,
        "D_PAD": max(16, triton.next_power_of_2(head_dim)),
        "PAGE": page_size,
        "BLOCK_M": block_m,
        "BLOCK_N": tile.block_n,
        "STAGES": tile.num_stages,
    }


def compile_cases() -> list[CompileCase]:
    """Every tile of bfloat16 caches, the common ones of the other dtypes, and what masks the most."""
    sizes = {64: 64, 80: 128, 128: 128, 256: 256}
    every = [each for each in product((16, 64, 128), (64, 128, 256)) if each != (128, 256)]  # see largest_block_m
    chosen = [(block_m, head_dim, "bf16", "bf16", False) for block_m, head_dim in every]
    chosen += [(128, 80, "fp16", "fp16", True), (64, 128, "fp32", "fp32", False)]
    chosen += [(block_m, 128, "bf16", "fp8e4nv", False) for block_m in (16, 64, 128)]
    chosen += [(16, 256, "bf16", "fp8e4nv", False)]
    itemsize = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8e4nv": 1}
    cases = []
    for block_m, head_dim, dtype, cache, masks in chosen:
        key = block_m, sizes[head_dim], itemsize[cache]
        tile, tight = _choose_tile(*key), _choose_tile(*key, roomy=False)
        case = _compile_case(block_m, head_dim, dtype, cache, masks, tile)
        if tile == tight:
            cases.append(case)
        else:
            small = _compile_case(block_m, head_dim, dtype, cache, masks, tight)
            cases += [replace(case, roomy=True), replace(small, name=f"{small.name} tight", roomy=False)]
    return cases


def _compile_case(block_m: int, head_dim: int, dtype: str, cache: str, masks: bool, tile: KeyTile) -> CompileCase:
    signature = dict.fromkeys(("q", "out"), f"*{dtype}") | dict.fromkeys(("keys", "values"), f"*{cache}")
    signature |= dict.fromkeys(("partial_out", "partial_lse"), "*fp32")
    signature |= dict.fromkeys(("items", "num_items", "query_rows", "query_limit", "page_table"), "*i32")
    constants = _constants(block_m, 4, 8, head_dim, 16, tile) | {"WINDOW": masks, "SOFTCAP": masks}
    scaled = dtype != cache
    if scaled:
        signature |= dict.fromkeys(("k_scale", "v_scale"), "*fp32")
    pointers = tuple(signature)
    signature |= {"query_stride": "i32", "table_stride": "i32", "scale": "fp32", "window": "i32", "softcap": "fp32"}
    name = f"m{block_m} d{head_dim} {dtype}" + f" {cache} cache" * scaled + " window softcap" * masks
    return CompileCase(
        name,
        _work_kernel,
        signature,
        constants if scaled else constants | {"k_scale": None, "v_scale": None},
        tile.num_warps,
        aligned=(*pointers, "query_stride"),
        max_registers=tile.max_registers,
    )
