"""Merges the partial results of attention over parts of a context: by log-sum-exp, in a fixed order.

Floor: reads 4 (D + 1) bytes a partial and head, writes D elements a row and head, no FLOPs to speak of; at decode sizes
a launch and three dependent reads, about 3 us. Merging by log-sum-exp: Dao et al. 2023, Flash-Decoding; Ye et al. 2025
(arXiv 2501.01005), section 2.2.

Partials are added one after the other, from the first to the last. So an empty one (lse = -inf), wherever it stands,
changes no bit of the result, and neither does a list of one.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ..compile_case import CompileCase

_UNROLL = 16
"""Partials read at once, a latency each time: more costs registers (4 each), fewer costs time in long lists."""

_MAX_PROGRAMS = 256
"""Programs for the lists of a head: more than run at once, and few enough to start where a graph has no lists today."""


@triton.jit
def _add_partials(
    partial_out,  # pointer to [P, num_heads, D] float32
    partial_lse,  # pointer to [P, num_heads] float32
    listed,  # pointer to the row of the first of `count` partials; without LISTED not read
    first,  # without LISTED: the partials are rows first .. first + count
    count,
    head,
    num_heads,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    LISTED: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """The merged result [D_PAD] in float32; 0 if all partials are empty."""
    top = float("-inf")
    lane = tl.arange(0, 32)
    for begin in range(0, count, 32):
        inside = begin + lane < count
        row = first + begin + lane
        if LISTED:
            row = tl.load(listed + begin + lane, mask=inside, other=0)
        lse = tl.load(partial_lse + row.to(tl.int64) * num_heads + head, mask=inside, other=float("-inf"))
        top = tl.maximum(top, tl.max(lse, 0))
    top = tl.where(top == float("-inf"), 0.0, top)

    d = tl.arange(0, D_PAD)
    acc = tl.zeros([D_PAD], tl.float32)
    total = 0.0
    for begin in range(0, count, UNROLL):
        for i in tl.static_range(UNROLL):
            inside = begin + i < count
            row = first + begin + i
            if LISTED:
                row = tl.load(listed + begin + i, mask=inside, other=0)
            at = row.to(tl.int64) * num_heads + head
            lse = tl.load(partial_lse + at, mask=inside, other=float("-inf"))
            part = tl.load(partial_out + at * D + d, mask=d < tl.where(inside, D, 0), other=0.0)
            weight = tl.exp2(lse - top)
            total += weight
            # An empty partial may hold anything.
            acc += weight * tl.where(lse == float("-inf"), 0.0, part)
    # Said outright, as a GPU divides by one only nearly: a single partial comes out as it went in.
    return tl.where((total == 1.0) | (total == 0.0), acc, acc / total)


@triton.jit
def _merge_splits_kernel(
    out,  # [B, H, D], contiguous
    partial_out,
    partial_lse,
    split_first,  # [B] int32
    split_count,  # [B] int32
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    UNROLL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    num_heads = tl.num_programs(1)
    first = tl.load(split_first + row)
    count = tl.load(split_count + row)
    if count > 1:
        merged = _add_partials(
            partial_out, partial_lse, split_first, first, count, head, num_heads, D, D_PAD, False, UNROLL
        )
        d = tl.arange(0, D_PAD)
        tl.store(out + (row * num_heads + head) * D + d, merged.to(out.dtype.element_ty), mask=d < D)


@triton.jit
def _merge_lists_kernel(
    out,  # [T, H, D], contiguous
    partial_out,
    partial_lse,
    rows,  # [N] int32
    starts,  # [N + 1] int32
    partials,  # [...] int32
    num_lists,  # [1] int32
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    UNROLL: tl.constexpr,
):
    head = tl.program_id(1)
    num_heads = tl.num_programs(1)
    for index in range(tl.program_id(0), tl.load(num_lists), tl.num_programs(0)):
        row = tl.load(rows + index).to(tl.int64)
        start = tl.load(starts + index)
        count = tl.load(starts + index + 1) - start
        merged = _add_partials(
            partial_out, partial_lse, partials + start, start, count, head, num_heads, D, D_PAD, True, UNROLL
        )
        d = tl.arange(0, D_PAD)
        tl.store(out + (row * num_heads + head) * D + d, merged.to(out.dtype.element_ty), mask=d < D)


def merge_splits(
    out: torch.Tensor,
    partial_out: torch.Tensor,
    partial_lse: torch.Tensor,
    *,
    split_first: torch.Tensor,
    split_count: torch.Tensor,
) -> None:
    """Writes out[b] from the split_count[b] partial rows from split_first[b] on, where they are two or more.

    out           [B, H, D]          any float dtype, contiguous
    partial_out   [P, H, D] float32  each normalised by its own sum of weights; ignored where its lse is -inf
    partial_lse   [P, H]    float32  logarithm to base 2 of that sum; -inf: nothing was seen
    split_first   [B]       int32
    split_count   [B]       int32    rows with one or none are not touched
    """
    batch, num_heads, head_dim = out.shape
    if batch:
        _merge_splits_kernel[(batch, num_heads)](
            out, partial_out, partial_lse, split_first, split_count, **_constants(head_dim, out.is_cuda)
        )


def merge_lists(
    out: torch.Tensor,
    partial_out: torch.Tensor,
    partial_lse: torch.Tensor,
    *,
    rows: torch.Tensor,
    starts: torch.Tensor,
    partials: torch.Tensor,
    num_lists: torch.Tensor,
) -> None:
    """Writes out[rows[i]] from the partial rows partials[starts[i] : starts[i + 1]], for every i < num_lists.

    out                      [T, H, D]   any float dtype, contiguous; rows not listed are not touched
    partial_out, partial_lse             see merge_splits
    rows                     [N]      int32   distinct; N is the capacity, which the grid depends on
    starts                   [N + 1]  int32
    partials                 [...]    int32   in the order in which they are added
    num_lists                [1]      int32   on the device, 0 .. N
    """
    _, num_heads, head_dim = out.shape
    if rows.shape[0]:
        _merge_lists_kernel[(min(rows.shape[0], _MAX_PROGRAMS), num_heads)](
            out, partial_out, partial_lse, rows, starts, partials, num_lists, **_constants(head_dim, out.is_cuda)
        )


def _constants(head_dim: int, compiled: bool) -> dict[str, Any]:
    d_pad = triton.next_power_of_2(head_dim)
    # The interpreter pays for every partial of a round, also for those past the end. The result is the same.
    return {"D": head_dim, "D_PAD": d_pad, "UNROLL": _UNROLL if compiled else 2, "num_warps": 1 if d_pad <= 128 else 2}


def compile_cases() -> list[CompileCase]:
    """Both kernels, for the smallest and the largest heads and one that is padded."""
    pointers = {"out": "*bf16", "partial_out": "*fp32", "partial_lse": "*fp32"}
    splits = {**pointers, "split_first": "*i32", "split_count": "*i32"}
    lists = {**pointers, "rows": "*i32", "starts": "*i32", "partials": "*i32", "num_lists": "*i32"}
    cases = []
    for head_dim in (64, 80, 128, 256):
        for kernel, signature in ((_merge_splits_kernel, splits), (_merge_lists_kernel, lists)):
            constants = _constants(head_dim, compiled=True)
            num_warps = constants.pop("num_warps")
            name = f"{kernel.fn.__name__.strip('_')} D={head_dim}"
            cases.append(CompileCase(name, kernel, signature, constants, num_warps, aligned=tuple(signature)))
    return cases
