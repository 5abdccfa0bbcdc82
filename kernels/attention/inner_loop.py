"""The inner loop of every attention kernel: a tile of query rows over a run of paged keys and values."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

LOG2_E = 1.4426950408889634
"""Scores are kept in powers of two, so that the hardware's exp2 serves: exp(x) = exp2(x * LOG2_E)."""


@dataclass(frozen=True)
class KeyTile:
    """Key positions of a tile; its buffers plus one; warps of a program; registers that a thread may have."""

    block_n: int
    num_stages: int
    num_warps: int
    max_registers: int | None = None


@triton.jit
def tanh(x):
    """tanh through the logistic function, which has no overflow and needs no library."""
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def as_factors(q, cache: tl.constexpr):
    """Queries as `attend_pages` takes them with a cache of this dtype.

    Beside a cache of 8-bit floats bfloat16 becomes float16, limited to what it holds. The cache's numbers become
    float16 two by two, in one instruction, and bfloat16 in three: more than there is time for while the next are read.
    """
    if cache == tl.float8e4nv and q.dtype == tl.bfloat16:
        q = tl.clamp(q.to(tl.float32), -65504.0, 65504.0, propagate_nan=tl.PropagateNan.ALL).to(tl.float16)
    return q


@triton.jit
def attend_pages(
    q,  # [M, D_PAD] queries, in the dtype of the products: see `as_factors`; columns past D are 0
    acc,  # [M, D_PAD] float32, weighted sum of values so far
    top,  # [M] float32, largest score so far, in powers of two; -inf at first
    total,  # [M] float32, sum of exp2(score - top) so far
    keys,  # pointer to this layer's and head's [num_slots, (stride), D]
    values,
    pages,  # pointer to the page ids of this run's sequence, int32
    start,  # positions start .. stop; `start` is a multiple of PAGE where PAGE divides BLOCK_N
    stop,
    first_visible,  # [M] first position a row may see (read with WINDOW)
    end_visible,  # [M] position after the last one a row may see
    slot_stride,  # elements between two slots: num_kv_heads * D
    scale,  # of scores, more than 0; times LOG2_E unless SOFTCAP
    softcap,  # float, read with SOFTCAP only
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,  # mask every tile; otherwise those that are not within clear_start .. clear_stop
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    STAGES: tl.constexpr,
    clear_start=0,  # every row sees all positions clear_start .. clear_stop; the first is read with WINDOW only
    clear_stop=0,
):
    """Online softmax (Milakov, Gimelshein 2018, arXiv 1805.02867) over positions start .. stop, in order.

    Returns (acc, top, total). Positions at and past `stop` are never read. A row that sees nothing keeps top = -inf,
    total = 0 and acc as it was. Each row's result depends on its own query and limits, and on `start` and BLOCK_N,
    alone.

    Page ids are fetched one tile ahead of the keys and values that they lead to, and carried from tile to tile: the
    compiler then sees no load that waits for a load, and keeps STAGES - 1 tiles in flight.
    """
    d = tl.arange(0, D_PAD)
    i = tl.arange(0, BLOCK_N)
    end = tl.minimum(end_visible, stop)
    whole_pages: tl.constexpr = BLOCK_N % PAGE == 0
    if whole_pages:
        # Where in its page a position of the tile lies is the same in every tile.
        page_at = pages + start // PAGE + i // PAGE
        within = (i % PAGE)[:, None] * slot_stride + d[None, :]
    else:
        page_at = pages + (start + i) // PAGE
    page = tl.load(page_at, mask=start + i < stop, other=0)
    for begin in tl.range(start, stop, BLOCK_N, num_stages=STAGES):
        n = begin + i
        if whole_pages:
            slot = page.to(tl.int64) * PAGE
            next_at = pages + (begin // PAGE + BLOCK_N // PAGE) + i // PAGE
        else:
            slot = page.to(tl.int64) * PAGE + n % PAGE
            within = d[None, :]
            next_at = pages + (n + BLOCK_N) // PAGE
        key_at = keys + within + slot[:, None] * slot_stride
        value_at = values + within + slot[:, None] * slot_stride
        page = tl.load(next_at, mask=n + BLOCK_N < stop, other=0)
        # What lies past the end was perhaps never written: 0 * NaN would be NaN.
        written = (n < stop)[:, None] & (d < D)[None, :]
        k = tl.load(key_at, mask=written, other=0.0)
        v = tl.load(value_at, mask=written, other=0.0)
        scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee")
        unit = scale  # of `scores`, in powers of two
        if SOFTCAP:
            scores = tanh(scores * (scale / softcap))
            unit = softcap * 1.4426950408889634
        edge = MASKED or begin + BLOCK_N > clear_stop
        if WINDOW and not MASKED:
            edge = edge | (begin < clear_start)
        if edge:
            visible = n[None, :] < end[:, None]
            if WINDOW:
                visible = visible & (n[None, :] >= first_visible[:, None])
            scores = tl.where(visible, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1) * unit)
        safe_top = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight = tl.exp2(tl.fma(scores, unit, -safe_top[:, None]))
        keep = tl.exp2(top - safe_top)
        total = tl.fma(total, keep, tl.sum(weight, 1))
        acc = tl.dot(weight.to(q.dtype), v.to(q.dtype), acc * keep[:, None], input_precision="ieee")
        top = new_top
    return acc, top, total
