"""A bound below which no filter of a row keeps any token, found from how many tokens lie in which bins."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from .logits import BELOW, bin_scale

_SLACK = tl.constexpr(0.25)
"""Bins by which rounding may have moved a token."""
_MASS_ERROR = tl.constexpr(4e-6)
"""Relative error of a row's mass, generously: it is a sum of float32 sums."""


@triton.jit
def last_bin(bins, before, mass, scale, top_k, top_p, min_p, V):
    """The last bin, counted from the likeliest token's, that can hold a token which the filters keep; >= 30: any can.

    bins     [32] number of tokens in the row's bins 0 .. 29, the other entries 0
    before   number of allowed tokens, all bins together
    mass     sum of all weights, in units of the largest
    """
    index = tl.arange(0, 32)
    width = scale / bin_scale(scale)  # of a bin, in powers of two of the weight
    reach = tl.cumsum(bins, 0)
    by_count = tl.sum((reach < top_k).to(tl.int32), 0)
    # The tail past a bin weighs at most as much as if each token stood at its bin's upper edge.
    known = tl.sum(bins, 0)
    bins = tl.where(index == BELOW, before - known, bins)
    edge = tl.exp2(tl.minimum(index * -1.0 + (1.0 + _SLACK), 0.0) * width)
    tail = tl.cumsum(bins.to(tl.float32) * edge, 0, reverse=True)
    by_mass = tl.maximum(tl.sum((tail > mass * (1.0 - top_p - _MASS_ERROR)).to(tl.int32), 0) - 1, 0)
    by_share = tl.ceil(tl.minimum(-tl.log2(tl.where(min_p > 0.0, min_p, 1.0)) / width, 60.0) + _SLACK).to(tl.int32)
    by_share = tl.where(min_p > 0.0, by_share, 32)
    by_mass = tl.where(top_p < 1.0, by_mass, 32)
    # Tokens 2^-42 times as likely as the likeliest have no weight.
    weightless = tl.ceil(tl.minimum(42.0 / width, 60.0) + _SLACK).to(tl.int32)
    # What min-p removes still counts in the mass that top-p takes its part of, if top-k has cut that mass.
    counted = tl.where(top_p < 1.0, by_count, tl.minimum(by_count, by_share))
    last = tl.where((top_k > 0) & (top_k < V), counted, tl.minimum(by_mass, by_share))
    return tl.minimum(last, weightless)


@triton.jit
def plan_list(
    row,
    tops,  # [NB_PAD] largest logit of each block
    top,
    mass,
    scale,
    top_k,
    top_p,
    min_p,
    block_bins,
    block_limit,
    block_offset,
    row_bound,
    V,
    NB,
    LINES: tl.constexpr,
    NB_PAD: tl.constexpr,
):
    """Chooses the bins of each block that go into the row's list, and where. Returns the length of the list."""
    block = tl.arange(0, NB_PAD)
    inside = block < NB
    fine = bin_scale(scale)
    # Bins are whole numbers from a common zero: those of a block follow the row's at a distance.
    shift = tl.floor(top * fine) - tl.floor(tops * fine)
    shift = tl.where(shift < 32.0, shift, 32.0).to(tl.int32)
    line = block_bins + (row * NB + block) * 32
    forbidden = tl.load(line + 31, mask=inside, other=LINES * 32)
    allowed = LINES * 32 - forbidden
    column = tl.arange(0, 32)[None, :] - shift[:, None]
    own = inside[:, None] & (column >= 0) & (tl.arange(0, 32)[None, :] < BELOW)
    bins = tl.load(line[:, None] + column, mask=own, other=0)
    last = last_bin(tl.sum(bins, 0), tl.sum(allowed, 0), mass, scale, top_k, top_p, min_p, V)
    everything = last >= BELOW
    listed = tl.sum(tl.where(tl.arange(0, 32)[None, :] <= last, bins, 0), 1)
    listed = tl.where(everything, allowed, listed)
    limit = tl.where(everything, BELOW, last - shift)
    at = row * NB + block
    tl.store(block_limit + at, tl.where(listed > 0, limit, -1), mask=inside)
    tl.store(block_offset + at, tl.cumsum(listed, 0) - listed, mask=inside)
    bound = (tl.floor(top * fine) - (last + 1).to(tl.float32)) / fine  # a bin lower, whatever the rounding
    tl.store(row_bound + row, tl.where(everything, float("-inf"), bound))
    return tl.sum(listed, 0)
