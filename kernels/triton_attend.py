"""The inner loop of every attention kernel: a tile of query rows over a run of paged keys and values."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = 1.4426950408889634
"""Scores are kept in powers of two, so that the hardware's exp2 serves: exp(x) = exp2(x * LOG2_E)."""


@triton.jit
def tanh(x):
    """tanh through the logistic function, which has no overflow and needs no library."""
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def attend_pages(
    q,  # [M, D_PAD] queries, in the dtype of the products; columns past D are 0
    acc,  # [M, D_PAD] float32, weighted sum of values so far
    top,  # [M] float32, largest score so far, in powers of two; -inf at first
    total,  # [M] float32, sum of exp2(score - top) so far
    keys,  # pointer to this layer's and head's [num_slots, (stride), D]
    values,
    pages,  # pointer to the page ids of this run's sequence, int32
    start,  # positions start .. stop; without MASKED both lie `BLOCK_N` apart by a whole number of tiles
    stop,
    first_visible,  # [M] first position a row may see (read with MASKED and WINDOW only)
    end_visible,  # [M] position after the last one a row may see (read with MASKED only)
    slot_stride,  # elements between two slots: num_kv_heads * D
    scale,  # of scores; times LOG2_E unless SOFTCAP
    softcap,  # float, read with SOFTCAP only
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Online softmax (Milakov, Gimelshein 2018, arXiv 1805.02867) over positions start .. stop, in order.

    Returns (acc, top, total). Positions at and past `stop` are never read. A row that sees nothing keeps top = -inf,
    total = 0 and acc as it was. Each row's result depends on its own query and limits, and on `start` and BLOCK_N,
    alone.
    """
    d = tl.arange(0, D_PAD)
    # Page ids are fetched a tile ahead, in registers: the pipeline is one of keys and values alone.
    n = start + tl.arange(0, BLOCK_N)
    page = tl.load(pages + n // PAGE, mask=n < stop, other=0)
    for begin in tl.range(start, stop, BLOCK_N, num_stages=STAGES):
        n = begin + tl.arange(0, BLOCK_N)
        inside = n < stop
        slot = page.to(tl.int64) * PAGE + n % PAGE
        page = tl.load(pages + (n + BLOCK_N) // PAGE, mask=n + BLOCK_N < stop, other=0)
        key_at = keys + slot[None, :] * slot_stride + d[:, None]
        value_at = values + slot[:, None] * slot_stride + d[None, :]
        if MASKED:
            # What lies past the end was perhaps never written: 0 * NaN would be NaN.
            k = tl.load(key_at, mask=inside[None, :] & (d < D)[:, None], other=0.0)
            v = tl.load(value_at, mask=inside[:, None] & (d < D)[None, :], other=0.0)
        elif D == D_PAD:
            k = tl.load(key_at)
            v = tl.load(value_at)
        else:
            k = tl.load(key_at, mask=(d < D)[:, None], other=0.0)
            v = tl.load(value_at, mask=(d < D)[None, :], other=0.0)
        scores = tl.dot(q, k.to(q.dtype), input_precision="ieee") * scale
        if SOFTCAP:
            scores = tanh(scores / softcap) * (softcap * 1.4426950408889634)
        if MASKED:
            visible = inside[None, :] & (n[None, :] < end_visible[:, None])
            if WINDOW:
                visible = visible & (n[None, :] >= first_visible[:, None])
            scores = tl.where(visible, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        safe_top = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight = tl.exp2(scores - safe_top[:, None])
        keep = tl.exp2(top - safe_top)
        total = total * keep + tl.sum(weight, 1)
        acc = tl.dot(weight.to(q.dtype), v.to(q.dtype), acc * keep[:, None], input_precision="ieee")
        top = new_top
    return acc, top, total
