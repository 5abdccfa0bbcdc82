"""Attention of one new token a sequence over its paged context, split over as many programs as the GPU has room for.

Floor: reads 2 * G * D * sum(context) cache elements once, which bounds it: the g = H / G query heads of a key-value
head do 4 * g * D FLOPs with the 2 * D elements of each token. They are packed as the rows of one tensor-core tile, so
that keys and values are read once for all of them.

Splitting a context over programs and merging by log-sum-exp: Dao et al. 2023, Flash-Decoding. Paged layout: Kwon et al.
2023 (arXiv 2309.06180).

Two steps: `plan`, once a forward pass, lists the splits of all sequences on the device; `attend`, once a layer, runs
one program for each split and key-value head. The launch grids depend on the batch size alone.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ..compile_case import CompileCase
from ..processor import num_processors
from .inner_loop import LOG2_E, KeyTile, as_factors, attend_pages
from .merge import merge_splits
from .plan.work_list import ITEM_FIELDS, SPLIT_ALIGNMENT

_MIN_SPLIT = 128
"""Tokens; a split of fewer costs more to start and to merge than its share of the GPU brings. On an H200 one row of 1k
tokens takes 9.5 us, and 11.9 us with splits of 256."""

_SPLITS_PER_PROCESSOR = 2
"""Programs for each multiprocessor to hold, if the contexts are long enough. Each keeps 32 to 64 KiB of reads in
flight; a latency of 1 us at 4.3 TB/s takes 33 KiB a multiprocessor. More of them cost a second round where there are
few rows: one row of 32k tokens takes 39.9 us on an H200, and 43.8 us with 3."""

_MAX_SPLITS = 65535
"""Most programs in the second dimension of one launch."""


@triton.jit(do_not_specialize=["batch", "target", "window"])
def _plan_kernel(
    items,  # [capacity, 8] int32 out, columns as work_list.WorkTiles has them
    num_items,  # [1] int32 out
    split_first,  # [B] int32 out
    split_count,  # [B] int32 out
    table_row,  # [B] int32
    context_len,  # [B] int32
    batch,
    target,  # splits wanted in all; read without FIXED_SPLIT
    window,  # read with WINDOW
    B_PAD: tl.constexpr,
    WINDOW: tl.constexpr,
    FIXED_SPLIT: tl.constexpr,  # tokens; 0: as many as make `target` splits of like length
    MIN_SPLIT: tl.constexpr,
    ALIGNMENT: tl.constexpr,
):
    """One program a row writes its items: each knows from all lengths where in the list they begin."""
    row = tl.program_id(0)
    b = tl.arange(0, B_PAD)
    context = tl.load(context_len + b, mask=b < batch, other=0)
    visible = tl.zeros_like(context)
    if WINDOW:
        visible = tl.maximum(context - window, 0)
    if FIXED_SPLIT > 0:
        begin = visible // FIXED_SPLIT * FIXED_SPLIT
        length = tl.full([B_PAD], FIXED_SPLIT, tl.int32)
    else:
        begin = visible // ALIGNMENT * ALIGNMENT
        # None longer than contexts are on average: where lengths differ, the longest would otherwise end long after.
        whole = tl.sum(context - begin, 0)
        wanted = tl.maximum(tl.cdiv(whole, tl.maximum(target, batch)), MIN_SPLIT)
        # Rounded to the nearest count and then to equal lengths: no sequence has a long split and a tiny one.
        count = tl.maximum((2 * (context - begin) + wanted) // (2 * wanted), 1)
        length = tl.cdiv(tl.cdiv(context - begin, count), ALIGNMENT) * ALIGNMENT
    count = tl.maximum(tl.cdiv(context - begin, tl.maximum(length, 1)), 1)
    count = tl.where(b < batch, count, 0)

    first = tl.sum(tl.where(b < row, count, 0), 0)
    own = b == row
    own_count = tl.sum(tl.where(own, count, 0), 0)
    own_begin = tl.sum(tl.where(own, begin, 0), 0)
    own_length = tl.sum(tl.where(own, length, 0), 0)
    own_context = tl.sum(tl.where(own, context, 0), 0)
    own_visible = tl.sum(tl.where(own, visible, 0), 0)
    tl.store(split_first + row, first)
    tl.store(split_count + row, own_count)
    if row == batch - 1:
        tl.store(num_items, first + own_count)
    own_table_row = tl.load(table_row + row)
    lane = tl.arange(0, 32)
    for done in range(0, own_count, 32):
        split = done + lane
        same = tl.zeros_like(split)
        at = items + (first + split) * 8
        inside = split < own_count
        start = own_begin + split * own_length
        stop = tl.minimum(start + own_length, own_context)
        tl.store(at, same + row, mask=inside)
        tl.store(at + 1, same + 1, mask=inside)
        tl.store(at + 2, same + own_table_row, mask=inside)
        # The first split may begin far before the window.
        tl.store(at + 3, tl.maximum(start, own_visible // ALIGNMENT * ALIGNMENT), mask=inside)
        tl.store(at + 4, stop, mask=inside)
        tl.store(at + 5, tl.where(own_count == 1, -1, first + split), mask=inside)
        tl.store(at + 6, stop, mask=inside)
        tl.store(at + 7, same, mask=inside)


@triton.jit(do_not_specialize=["table_stride", "window"], do_not_specialize_on_alignment=["k_scale", "v_scale"])
def _decode_kernel(
    q,  # [B, H, D], contiguous
    keys,  # [num_slots, G, D], contiguous
    values,
    out,  # [B, H, D], contiguous
    partial_out,  # [capacity, H, D] float32
    partial_lse,  # [capacity, H] float32
    items,
    num_items,
    context_len,  # [B] int32, read with WINDOW
    page_table,  # [R, table_stride] int32
    k_scale,  # [G] float32, or None
    v_scale,
    table_stride,
    window,
    scale,  # of scores; times LOG2_E unless SOFTCAP
    softcap,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One split of one sequence for one key-value head.

    Heads of one split run side by side: they read neighbouring memory. Then come the splits of one sequence.
    """
    head = tl.program_id(0)
    num_kv_heads = tl.num_programs(0)
    split = tl.program_id(1)
    if split < tl.load(num_items):
        item = items + split * 8
        row = tl.load(item).to(tl.int64)
        table_row = tl.load(item + 2)
        start = tl.load(item + 3)
        stop = tl.load(item + 4)
        partial = tl.load(item + 5)
        first_visible = 0
        if WINDOW:
            first_visible = tl.load(context_len + row) - window

        m = tl.arange(0, BLOCK_M)
        d = tl.arange(0, D_PAD)
        stored = (m < GROUP)[:, None] & (d < D)[None, :]
        of_head = (head * GROUP + m)[:, None] * D + d[None, :]
        row_size = num_kv_heads * GROUP * D
        tile = tl.load(q + row * row_size + of_head, mask=stored, other=0.0)
        if k_scale is not None:
            scale *= tl.load(k_scale + head)
        acc, top, total = attend_pages(
            as_factors(tile, keys.dtype.element_ty),
            tl.zeros([BLOCK_M, D_PAD], tl.float32),
            tl.full([BLOCK_M], float("-inf"), tl.float32),
            tl.zeros([BLOCK_M], tl.float32),
            keys + head * D,
            values + head * D,
            page_table + table_row.to(tl.int64) * table_stride,
            # A window's first tile may begin before it. Masking every tile costs less here than emptying the pipeline
            # of loads before a masked last one.
            start,
            stop,
            tl.zeros([BLOCK_M], tl.int32) + first_visible,
            tl.zeros([BLOCK_M], tl.int32) + stop,
            num_kv_heads * D,
            scale,
            softcap,
            D,
            D_PAD,
            PAGE,
            BLOCK_N,
            True,
            WINDOW,
            SOFTCAP,
            STAGES,
        )
        safe_total = tl.where(total == 0.0, 1.0, total)
        result = acc / safe_total[:, None]
        if v_scale is not None:
            result *= tl.load(v_scale + head)
        if partial < 0:
            tl.store(out + row * row_size + of_head, result.to(out.dtype.element_ty), mask=stored)
        else:
            at = partial.to(tl.int64) * num_kv_heads * GROUP
            tl.store(partial_out + at * D + of_head, result, mask=stored)
            # Where nothing was seen, `top` is -inf, and so is the sum.
            tl.store(partial_lse + at + head * GROUP + m, top + tl.log2(safe_total), mask=m < GROUP)


_TILES = {
    (4, 64): KeyTile(32, 2, 8),
    (4, 128): KeyTile(32, 2, 8),
    (4, 256): KeyTile(16, 2, 8),
    (2, 64): KeyTile(64, 4, 4),
    (2, 128): KeyTile(32, 4, 2),
    (2, 256): KeyTile(32, 3, 4),
    (1, 64): KeyTile(64, 4, 4),
    (1, 128): KeyTile(64, 4, 4),
    (1, 256): KeyTile(32, 4, 4),
}
"""By bytes of a cache element and padded head size. Three programs fit a multiprocessor of sm_90, two of sm_80, one of
any. float32 is not multiplied on tensor cores: there registers are what is short. That of heads of 128 is the fastest
of nine on an H200 from 64 rows on (64 rows of 4k: 253 us, 1.01 of the floor), and within 10 % of the fastest below."""


def _choose_tile(d_pad: int, itemsize: int) -> KeyTile:
    return _TILES[itemsize, max(64, d_pad)]


class DecodeSplits:
    """The splits of a batch's contexts: device memory of a fixed size, written anew by each `plan`.

    It serves batches of up to `max_batch` rows. With `fixed_split` (tokens, a multiple of SPLIT_ALIGNMENT) splits lie
    between absolute multiples of it, and a row's result depends on that row alone, to the bit; contexts may have
    `max_context` tokens then. Without it they may have any length.

    A split is an item of a work list whose query is the batch's row, so that other kernels can run it too:

        items         [capacity, 8] int32   columns as work_list.WorkTiles has them; PARTIAL is the split's own index,
                                            or -1 where it is its row's only one
        num_items     [1] int32
        query_rows    [max_batch] int32     the rows in order, as that item's query counts
        first, count  [max_batch] int32     the splits of each row
        partial_out, partial_lse            float32 [capacity, H, D] and [capacity, H], see merge_splits
    """

    def __init__(
        self,
        max_batch: int,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        device: torch.device | str,
        window: int | None = None,
        fixed_split: int | None = None,
        max_context: int | None = None,
    ) -> None:
        if fixed_split is not None and (fixed_split <= 0 or fixed_split % SPLIT_ALIGNMENT):
            raise ValueError(f"fixed_split must be a positive multiple of {SPLIT_ALIGNMENT}, got {fixed_split}")
        if fixed_split is not None and max_context is None:
            raise ValueError("fixed_split needs max_context: it says how many splits a row may have")
        self._window = window
        self._fixed_split = fixed_split
        self._max_splits = None if fixed_split is None or max_context is None else -(-max_context // fixed_split)
        self._target = -(-num_processors(device) * _SPLITS_PER_PROCESSOR // num_kv_heads)
        self._batch = 0
        capacity = self._capacity(max_batch)
        if capacity > _MAX_SPLITS:
            raise ValueError(
                f"{max_batch} rows may have {capacity} splits in all, {_MAX_SPLITS} at most can be launched: "
                "serve fewer or shorter sequences at a time"
            )
        self.items = torch.zeros(capacity, ITEM_FIELDS, dtype=torch.int32, device=device)
        self.num_items = torch.zeros(1, dtype=torch.int32, device=device)
        self.first = torch.zeros(max_batch, dtype=torch.int32, device=device)
        self.count = torch.zeros(max_batch, dtype=torch.int32, device=device)
        self.query_rows = torch.arange(max_batch, dtype=torch.int32, device=device)
        self.partial_out = torch.empty(capacity, num_heads, head_dim, dtype=torch.float32, device=device)
        self.partial_lse = torch.empty(capacity, num_heads, dtype=torch.float32, device=device)
        self._context_len = self.count

    def plan(self, table_row: torch.Tensor, context_len: torch.Tensor) -> None:
        """Splits the contexts of a batch; no value leaves the device.

        table_row     [B] int32   row of the page table that each row of the batch has
        context_len   [B] int32   tokens, the new one included; 0: an unused row, whose result is 0
        """
        batch = context_len.shape[0]
        if not 0 < batch <= self.first.shape[0]:
            raise ValueError(f"these splits serve 1 to {self.first.shape[0]} rows, got {batch}")
        self._batch = batch
        self._context_len = context_len
        _plan_kernel[(batch,)](
            self.items,
            self.num_items,
            self.first,
            self.count,
            table_row,
            context_len,
            batch,
            self._target,
            self._window or 0,
            B_PAD=triton.next_power_of_2(len(self.first)),
            WINDOW=self._window is not None,
            FIXED_SPLIT=self._fixed_split or 0,
            MIN_SPLIT=_MIN_SPLIT,
            ALIGNMENT=SPLIT_ALIGNMENT,
        )

    def attend(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        out: torch.Tensor,
        *,
        page_table: torch.Tensor,
        page_size: int,
        scale: float,
        softcap: float | None = None,
        k_scale: torch.Tensor | None = None,
        v_scale: torch.Tensor | None = None,
    ) -> None:
        """Writes softmax(q K^T scale) V of each row of the planned batch to `out`.

            q, out           [B, H, D]          float16 | bfloat16 | float32, contiguous
            keys, values     [num_slots, G, D]  the dtype of `q`, or float8_e4m3fn; contiguous; H / G is 1 .. 16
            page_table       [R, P] int32       page ids in order; what is past a context is not read
            k_scale, v_scale [G] float32        what stored keys and values are to be multiplied by; None: 1

        Scores, softmax and sums are float32. `softcap`: scores become softcap * tanh(score / softcap).
        """
        batch, num_heads, head_dim = q.shape
        if batch != self._batch:
            raise ValueError(f"{self._batch} rows were planned, got queries of {batch}")
        num_kv_heads = keys.shape[1]
        group = num_heads // num_kv_heads
        d_pad = triton.next_power_of_2(head_dim)
        tile = _choose_tile(d_pad, keys.element_size())
        _decode_kernel[(num_kv_heads, self._capacity(batch))](
            q,
            keys,
            values,
            out,
            self.partial_out,
            self.partial_lse,
            self.items,
            self.num_items,
            self._context_len,
            page_table,
            k_scale,
            v_scale,
            page_table.stride(0),
            self._window or 0,
            scale if softcap is not None else scale * LOG2_E,
            softcap or 0.0,
            GROUP=group,
            BLOCK_M=max(16, triton.next_power_of_2(group)),
            D=head_dim,
            D_PAD=d_pad,
            PAGE=page_size,
            BLOCK_N=tile.block_n,
            WINDOW=self._window is not None,
            SOFTCAP=softcap is not None,
            STAGES=tile.num_stages,
            num_warps=tile.num_warps,
        )
        self.merge(out)

    def merge(self, out: torch.Tensor) -> None:
        """Completes the rows of `out` whose contexts are in several splits, from `partial_out` and `partial_lse`."""
        merge_splits(out, self.partial_out, self.partial_lse, split_first=self.first, split_count=self.count)

    def _capacity(self, batch: int) -> int:
        """Splits that a batch has at most: rounding each row's to a whole number adds less than one a row."""
        return max(self._target, batch) + batch if self._max_splits is None else batch * self._max_splits


def compile_cases() -> list[CompileCase]:
    """Each head size in bfloat16, with the options on and off, an 8-bit cache, float32, and the planner."""
    cases = [_decode_case(head_dim, "*bf16") for head_dim in (64, 80, 128, 256)]
    cases += [_decode_case(128, "*bf16", limited=True), _decode_case(96, "*fp16", limited=True)]
    cases += [_decode_case(head_dim, "*fp8e4nv") for head_dim in (64, 128, 256)]
    cases += [_decode_case(head_dim, "*fp32") for head_dim in (64, 128, 256)]
    names = ("items", "num_items", "split_first", "split_count", "table_row", "context_len")
    pointers = dict.fromkeys(names, "*i32")
    numbers = dict.fromkeys(("batch", "target", "window"), "i32")
    options = {"WINDOW": True, "FIXED_SPLIT": 0, "MIN_SPLIT": _MIN_SPLIT, "ALIGNMENT": SPLIT_ALIGNMENT}
    constants = {"B_PAD": 512, **options}
    return [*cases, CompileCase("plan", _plan_kernel, pointers | numbers, constants, 4, aligned=tuple(pointers))]


def _decode_case(head_dim: int, cache: str, *, limited: bool = False) -> CompileCase:
    """`limited`: with a window and a softcap. GPUs before sm_89 know no float8_e4m3fn."""
    d_pad = triton.next_power_of_2(head_dim)
    tile = _choose_tile(d_pad, {"*fp32": 4, "*fp8e4nv": 1}.get(cache, 2))
    model = "*bf16" if cache == "*fp8e4nv" else cache
    scales = {"k_scale": "*fp32", "v_scale": "*fp32"} if cache == "*fp8e4nv" else {}
    pointers = {"q": model, "keys": cache, "values": cache, "out": model, "partial_out": "*fp32"}
    pointers |= {"partial_lse": "*fp32", **dict.fromkeys(("items", "num_items", "context_len", "page_table"), "*i32")}
    pointers |= scales
    numbers = {"table_stride": "i32", "window": "i32", "scale": "fp32", "softcap": "fp32"}
    constants: dict[str, Any] = {} if scales else {"k_scale": None, "v_scale": None}
    constants |= {"GROUP": 4, "BLOCK_M": 16, "D": head_dim, "D_PAD": d_pad, "PAGE": 16, "BLOCK_N": tile.block_n}
    constants |= {"WINDOW": limited, "SOFTCAP": limited, "STAGES": tile.num_stages}
    name = f"D={head_dim} {cache.strip('*')}{' window softcap' if limited else ''}"
    return CompileCase(name, _decode_kernel, pointers | numbers, constants, tile.num_warps, aligned=tuple(pointers))
