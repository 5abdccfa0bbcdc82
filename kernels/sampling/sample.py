"""The sampler on a GPU: penalties, bias, mask, temperature, top-k, top-p, min-p and the draw, in two or four launches.

`scan` [B, blocks]: reads the logits once. Of each block: the largest, its lowest index, the sum of exp, whether all are
finite, and, for filtered rows, how many tokens lie in each of 30 bins below the block's largest.
`settle` [B]: joins the blocks. Finishes greedy rows, and rows drawn without filters: picks the block by the sums, reads
it again and inverts. For filtered rows it finds, from the bins, a bound below which no filter keeps a token.
`collect` [B, blocks]: reads each block with likely tokens again and packs their logits and ids, mostly some hundred,
in vocabulary order into the row's list, at an offset that `settle` knows from the counts of `scan`.
`draw` [B]: one program a row finds the cut, the logit at which top-k's count and then top-p's mass is reached, and how
many tokens of exactly that logit are kept; then it draws. The search is over the logits' bits (their order as whole
numbers), exact, with three pivots a pass and a bracket that shrinks to the logits really present. Dual pivots over
probabilities are known from FlashInfer's sampling kernels (arXiv 2501.01005); weights here are whole numbers, so that
passes agree to the last unit and a cut is never off by a rounding.

Nothing is sorted and no logits are written. A row's result depends on its own data alone, to the bit: the partition
depends on the vocabulary alone, and sums are made in a fixed order, or of whole numbers, where order does not matter.

Floor: one read of the logits, B * V * 2 bytes for bfloat16: at B = 64, V = 151,936 19.5 MB, 5 us at 4.3 TB/s.
Expected on an H200 at that size: `scan` is bound by its instructions, about 20 a logit for greedy rows, 60 with bins:
9.7 M logits at 16,896 lanes and 1.8 GHz are 7 us and 20 us; `settle` 3 us (a chain of latencies); `collect` up to 5 us,
`draw` 5 us; 1.3 us a launch in a graph. Greedy with mask: 13 us. All filters on each row: 40 us. B = 1: 5 us and 15 us.
`collect` reads at most the logits again, from L2 at 5 TB/s, and only the blocks with likely tokens, often few.
`draw` reads a list of some hundred floats about 6 times a search, from L1 at about 0.3 us a pass. A flat row, whose
nucleus is 100,000 tokens, takes about 25 us a pass: some 200 us, while others are long done.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
import triton
import triton.language as tl

from ..compile_case import CompileCase
from .logits import (
    BELOW,
    BLOCK_LINES,
    FILTERED,
    GREEDY,
    NO_NUMBER,
    NO_TOKEN,
    NUM_BINS,
    ROW_ARGUMENTS,
    UNIT,
    bin_of,
    bin_scale,
    block_index,
    inverse_temperature,
    read_block,
    record,
    row_kind,
    running_sum,
    scaled_floor,
    uniform_bits,
    weigh,
)
from .reference import SampleRows, SampleTables

NUM_WARPS = 8
DRAW_TILE = 1024
UNROLL = tl.constexpr(2)
"""Tiles of a long list whose reads are under way together."""
_SLACK = tl.constexpr(0.25)
"""Bins by which rounding may have moved a token."""
_MASS_ERROR = tl.constexpr(4e-6)
"""Relative error of a row's mass, generously: it is a sum of float32 sums."""

_BIASES = 1024
"""Width of a bias table up to which it makes no other kernel."""


@triton.jit(do_not_specialize=["K"], do_not_specialize_on_alignment=ROW_ARGUMENTS)
def scan(
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    logits,
    logits_stride,
    repetitions,
    frequencys,
    presences,
    count_rows,
    mask_rows,
    bias_rows,
    counts,
    masks,
    bias_ids,
    bias_values,
    block_top,
    block_token,
    block_sum,
    block_bins,
    V,
    W,
    K,
    NB,
    HAS_COUNTS: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    K_PAD: tl.constexpr,
    LINES: tl.constexpr,
    WHOLE_LINES: tl.constexpr,
    FILTERS: tl.constexpr,
):
    block = tl.program_id(0)
    row = tl.program_id(1)
    temperature = tl.load(temperatures + row)
    if temperature >= 0.0:
        kind = row_kind(temperature, tl.load(top_ks + row), tl.load(top_ps + row), tl.load(min_ps + row), V)
        x, all_finite = read_block(
            row, block, logits, logits_stride, repetitions, frequencys, presences, count_rows, mask_rows, bias_rows,
            counts, masks, bias_ids, bias_values, V, W, K, HAS_COUNTS, HAS_MASK, HAS_BIAS, K_PAD, LINES, WHOLE_LINES,
        )  # fmt: skip
        at = row * NB + block
        top = tl.max(tl.max(x, 1), 0)
        token = block * (LINES * 32) + tl.min(tl.min(tl.where(x == top, block_index(0, LINES), 2147483647), 1), 0)
        tl.store(block_top + at, top)
        tl.store(block_token + at, tl.where(all_finite, token, -1))
        if kind != GREEDY:
            scale = inverse_temperature(temperature)
            shares = tl.exp2((x - tl.where(top == float("-inf"), 0.0, top)) * scale)
            tl.store(block_sum + at, tl.sum(tl.sum(shares, 1), 0))
            if FILTERS and kind == FILTERED:
                bins = tl.ravel(bin_of(x, top, bin_scale(scale)))
                tl.store(block_bins + at * 32 + tl.arange(0, 32), tl.histogram(bins, 32))


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


@triton.jit(do_not_specialize=["K"], do_not_specialize_on_alignment=ROW_ARGUMENTS)
def settle(
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    seeds,
    positions,
    logits,
    logits_stride,
    repetitions,
    frequencys,
    presences,
    count_rows,
    mask_rows,
    bias_rows,
    token_rows,
    counts,
    masks,
    bias_ids,
    bias_values,
    last_tokens,
    block_top,
    block_token,
    block_sum,
    block_bins,
    block_limit,
    block_offset,
    row_top,
    row_mass,
    row_bound,
    list_size,
    out,
    V,
    W,
    K,
    NB,
    HAS_COUNTS: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_LAST: tl.constexpr,
    K_PAD: tl.constexpr,
    LINES: tl.constexpr,
    WHOLE_LINES: tl.constexpr,
    NB_PAD: tl.constexpr,
    FILTERS: tl.constexpr,
):
    row = tl.program_id(0)
    temperature = tl.load(temperatures + row)
    size = tl.full([], 0, tl.int32)
    if temperature >= 0.0:
        top_k = tl.load(top_ks + row)
        top_p = tl.load(top_ps + row)
        min_p = tl.load(min_ps + row)
        kind = row_kind(temperature, top_k, top_p, min_p, V)
        blocks = tl.arange(0, NB_PAD)
        at = row * NB + blocks
        tops = tl.load(block_top + at, mask=blocks < NB, other=float("-inf"))
        likeliest = tl.load(block_token + at, mask=blocks < NB, other=2147483647)
        top = tl.max(tops, 0)
        token = tl.min(tl.where(tops == top, likeliest, 2147483647), 0)
        done = kind == GREEDY
        if (tl.min(likeliest, 0) < 0) | (top == float("inf")):
            token = tl.full([], NO_NUMBER, tl.int32)
            done = tl.full([], 1, tl.int1)
        elif top == float("-inf"):
            token = tl.full([], NO_TOKEN, tl.int32)
            done = tl.full([], 1, tl.int1)
        elif kind != GREEDY:
            scale = inverse_temperature(temperature)
            sums = tl.load(block_sum + at, mask=blocks < NB, other=0.0)
            masses = (sums * tl.exp2((tops - top) * scale) * UNIT).to(tl.int64)
            mass = tl.sum(masses, 0)
            if FILTERS and kind == FILTERED:
                tl.store(row_top + row, tl.where(top == 0.0, 0.0, top))  # not -0.0, which is lower in its bits
                tl.store(row_mass + row, mass)
                size = plan_list(
                    row, tops, top, mass.to(tl.float32) / UNIT, scale, top_k, top_p, min_p, block_bins, block_limit,
                    block_offset, row_bound, V, NB, LINES, NB_PAD,
                )  # fmt: skip
            else:
                wanted = scaled_floor(uniform_bits(tl.load(seeds + row), tl.load(positions + row)), mass)
                block = tl.sum((tl.cumsum(masses, 0) <= wanted).to(tl.int32), 0)
                own = tl.sum(tl.where(blocks == block, masses, 0), 0)
                wanted -= tl.sum(tl.where(blocks < block, masses, 0), 0)
                x, _ = read_block(
                    row, block, logits, logits_stride, repetitions, frequencys, presences, count_rows, mask_rows,
                    bias_rows, counts, masks, bias_ids, bias_values, V, W, K, HAS_COUNTS, HAS_MASK, HAS_BIAS, K_PAD,
                    LINES, WHOLE_LINES,
                )  # fmt: skip
                # Weights anew, in units of the block's largest: all may be less than a unit of the row's.
                reach = running_sum(weigh(x, tl.max(tl.max(x, 1), 0), scale))
                total = tl.max(tl.max(reach, 1), 0)
                part = (wanted.to(tl.float64) / own.to(tl.float64) * total.to(tl.float64)).to(tl.int64)
                passed = (reach <= tl.minimum(part, total - 1)).to(tl.int32)
                token = block * (LINES * 32) + tl.sum(tl.sum(passed, 1), 0)
                done = tl.full([], 1, tl.int1)
        if done:
            record(
                row, token.to(tl.int64), out, count_rows, counts, token_rows, last_tokens, V, HAS_COUNTS, HAS_LAST
            )  # fmt: skip
    if FILTERS:
        tl.store(list_size + row, size)


@triton.jit(do_not_specialize=["K"], do_not_specialize_on_alignment=ROW_ARGUMENTS)
def collect(
    temperatures,
    logits,
    logits_stride,
    repetitions,
    frequencys,
    presences,
    count_rows,
    mask_rows,
    bias_rows,
    counts,
    masks,
    bias_ids,
    bias_values,
    block_top,
    block_limit,
    block_offset,
    list_size,
    list_logits,
    list_tokens,
    V,
    W,
    K,
    NB,
    HAS_COUNTS: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    K_PAD: tl.constexpr,
    LINES: tl.constexpr,
    WHOLE_LINES: tl.constexpr,
):
    block = tl.program_id(0)
    row = tl.program_id(1)
    # The size is read first: of a row that is not filtered the rest was not written.
    if tl.load(list_size + row) > 0:
        at = row * NB + block
        limit = tl.load(block_limit + at)
        if limit >= 0:
            x, _ = read_block(
                row, block, logits, logits_stride, repetitions, frequencys, presences, count_rows, mask_rows,
                bias_rows, counts, masks, bias_ids, bias_values, V, W, K, HAS_COUNTS, HAS_MASK, HAS_BIAS, K_PAD, LINES,
                WHOLE_LINES,
            )  # fmt: skip
            scale = bin_scale(inverse_temperature(tl.load(temperatures + row)))
            taken = bin_of(x, tl.load(block_top + at), scale) <= limit
            place = tl.load(block_offset + at) + running_sum(taken.to(tl.int32)) - 1
            target = row.to(tl.int64) * V + place
            tl.store(list_logits + target, tl.where(x == 0.0, 0.0, x), mask=taken)  # -0.0 equals 0.0, in bits too
            tl.store(list_tokens + target, block_index(block, LINES), mask=taken)


@triton.jit
def order_of(x):
    """Integers in the order of the floats x."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def float_of(order):
    """The float of an integer from `order_of`."""
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def find_cut(values, size, lowest, top, scale, goal, BY_MASS: tl.constexpr, TILE: tl.constexpr):
    """(cut, number of tokens at the cut to keep): the fewest likeliest tokens whose count or mass reaches `goal` >= 1.

    The cut is an `order_of`; no token is kept below `lowest`. If the goal is not reached, all from there on are kept.
    """
    # Of the list, what is at or over `low` reaches the goal; what is at or over `high`, `above`, does not.
    low = lowest.to(tl.int64)
    high = order_of(top).to(tl.int64) + 1
    above = tl.full([], 0, tl.int64)
    while high - low > 1:
        # Thirds of the logits' range close in fast, half of their order never takes more than 32 passes.
        bottom = tl.maximum(float_of(low.to(tl.int32)), -1e38)
        height = float_of((high - 1).to(tl.int32))
        third_up = order_of(bottom * (2.0 / 3.0) + height * (1.0 / 3.0)).to(tl.int64)
        third_down = order_of(bottom * (1.0 / 3.0) + height * (2.0 / 3.0)).to(tl.int64)
        half = low + (high - low) // 2
        third_up = tl.minimum(tl.maximum(third_up, low + 1), high - 1)
        third_down = tl.minimum(tl.maximum(third_down, low + 1), high - 1)
        first = tl.minimum(tl.minimum(third_up, third_down), half).to(tl.int32)
        third = tl.maximum(tl.maximum(third_up, third_down), half).to(tl.int32)
        second = (third_up + third_down + half - first - third).to(tl.int32)
        over_first = tl.zeros([TILE], tl.int64)
        over_second = tl.zeros([TILE], tl.int64)
        over_third = tl.zeros([TILE], tl.int64)
        least = tl.full([TILE], 2147483647, tl.int32)
        most = tl.full([TILE], -2147483648, tl.int32)
        for start in tl.range(0, size, TILE, loop_unroll_factor=UNROLL):
            i = start + tl.arange(0, TILE)
            x = tl.load(values + i, mask=i < size, other=float("-inf"))
            order = order_of(x)
            gain = weigh(x, top, scale) if BY_MASS else tl.full([TILE], 1, tl.int64)
            over_first += tl.where(order >= first, gain, 0)
            over_second += tl.where(order >= second, gain, 0)
            over_third += tl.where(order >= third, gain, 0)
            least = tl.minimum(least, tl.where(order >= low.to(tl.int32), order, 2147483647))
            most = tl.maximum(most, tl.where(order <= (high - 1).to(tl.int32), order, -2147483648))
        reach_first = tl.sum(over_first, 0)
        reach_second = tl.sum(over_second, 0)
        reach_third = tl.sum(over_third, 0)
        lower = tl.min(least, 0).to(tl.int64)
        upper = tl.max(most, 0).to(tl.int64)
        if reach_third >= goal:
            low = third.to(tl.int64)
        elif reach_second >= goal:
            low, high, above = second.to(tl.int64), third.to(tl.int64), reach_third
        elif reach_first >= goal:
            low, high, above = first.to(tl.int64), second.to(tl.int64), reach_second
        else:
            high, above = first.to(tl.int64), reach_first
        # Between two logits of the list all cuts are the same.
        high = tl.minimum(high, tl.maximum(upper, low) + 1)
        low = tl.minimum(tl.maximum(low, lower), high - 1)
    cut = low.to(tl.int32)
    num_equal = goal - above
    if BY_MASS:
        each = tl.maximum(weigh(float_of(cut), top, scale), 1)
        num_equal = (num_equal + each - 1) // each
    return cut, num_equal


@triton.jit
def mass_of(values, size, top, scale, cut, num_equal, lightest, TILE: tl.constexpr):
    """Mass of the tokens over `cut` and of `num_equal` at it, those lighter than `lightest` left out."""
    over = tl.zeros([TILE], tl.int64)
    equal = tl.zeros([TILE], tl.int64)
    for start in tl.range(0, size, TILE, loop_unroll_factor=UNROLL):
        i = start + tl.arange(0, TILE)
        x = tl.load(values + i, mask=i < size, other=float("-inf"))
        weights = weigh(x, top, scale)
        order = order_of(x)
        over += tl.where((order > cut) & (weights >= lightest), weights, 0)
        equal += ((order == cut) & (i < size)).to(tl.int64)
    each = weigh(float_of(cut), top, scale)
    each = tl.where(each >= lightest, each, 0)
    return tl.sum(over, 0) + tl.minimum(tl.sum(equal, 0), num_equal) * each


@triton.jit
def draw_kept(values, tokens, size, top, scale, cut, num_equal, lightest, wanted, TILE: tl.constexpr):
    """The first token, in list order, at which the mass of the kept ones exceeds `wanted`."""
    each = weigh(float_of(cut), top, scale)
    each = tl.where(each >= lightest, each, 0)
    token = tl.full([], 0, tl.int64)
    before = tl.full([], 0, tl.int64)
    left = num_equal  # tokens at the cut that may still be kept
    for start in range(0, size, TILE):
        i = start + tl.arange(0, TILE)
        x = tl.load(values + i, mask=i < size, other=float("-inf"))
        order = order_of(x)
        weights = weigh(x, top, scale)
        over = tl.where((order > cut) & (weights >= lightest), weights, 0)
        equal = ((order == cut) & (i < size)).to(tl.int32)
        taken = tl.minimum(tl.sum(equal, 0).to(tl.int64), left)
        after = before + tl.sum(over, 0) + taken * each
        if (before <= wanted) & (wanted < after):
            kept = (equal == 1) & (tl.cumsum(equal, 0) <= left)
            reach = before + tl.cumsum(tl.where(kept, each, over), 0)
            token = tl.load(tokens + start + tl.sum((reach <= wanted).to(tl.int32), 0)).to(tl.int64)
        before = after
        left -= taken
    return token


@triton.jit(do_not_specialize=["K"], do_not_specialize_on_alignment=ROW_ARGUMENTS)
def draw(
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    seeds,
    positions,
    count_rows,
    token_rows,
    counts,
    last_tokens,
    row_top,
    row_mass,
    row_bound,
    list_size,
    list_logits,
    list_tokens,
    out,
    V,
    HAS_COUNTS: tl.constexpr,
    HAS_LAST: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0)
    size = tl.load(list_size + row)
    if size > 0:
        values = list_logits + row.to(tl.int64) * V
        tokens = list_tokens + row.to(tl.int64) * V
        top = tl.load(row_top + row)
        scale = inverse_temperature(tl.load(temperatures + row))
        mass = tl.load(row_mass + row)
        cut = order_of(tl.load(row_bound + row))  # below which there is nothing in the list
        num_equal = tl.full([], 0, tl.int64)
        top_k = tl.load(top_ks + row)
        if (top_k > 0) & (top_k < V):
            cut, num_equal = find_cut(values, size, cut, top, scale, top_k.to(tl.int64), False, TILE)
            mass = mass_of(values, size, top, scale, cut, num_equal, 0, TILE)
        top_p = tl.load(top_ps + row)
        if top_p < 1.0:
            fraction = (top_p * 9223372036854775808.0).to(tl.int64).to(tl.uint64, bitcast=True) * 2
            goal = scaled_floor(fraction, mass)
            goal += tl.where(fraction * mass.to(tl.uint64, bitcast=True) != 0, 1, 0)  # a part of a unit: round up
            cut, num_equal = find_cut(values, size, cut, top, scale, tl.maximum(goal, 1), True, TILE)
        lightest = (tl.load(min_ps + row) * UNIT).to(tl.int64)
        mass = mass_of(values, size, top, scale, cut, num_equal, lightest, TILE)
        wanted = scaled_floor(uniform_bits(tl.load(seeds + row), tl.load(positions + row)), mass)
        token = draw_kept(values, tokens, size, top, scale, cut, num_equal, lightest, wanted, TILE)
        record(row, token, out, count_rows, counts, token_rows, last_tokens, V, HAS_COUNTS, HAS_LAST)


@dataclass(frozen=True, slots=True)
class SampleWorkspace:
    """Device memory that `sample_rows` works in, made once for the largest batch; holds nothing between calls.

    8 bytes a row and token, of which mostly little is touched: the list of likely tokens, [R, V]; else [R, blocks].
    """

    block_top: torch.Tensor
    block_token: torch.Tensor
    block_sum: torch.Tensor
    block_bins: torch.Tensor
    block_limit: torch.Tensor
    block_offset: torch.Tensor
    row_top: torch.Tensor
    row_mass: torch.Tensor
    row_bound: torch.Tensor
    list_size: torch.Tensor
    list_logits: torch.Tensor
    list_tokens: torch.Tensor
    lines: int
    tile: int

    @classmethod
    def create(
        cls,
        max_rows: int,
        vocab_size: int,
        device: torch.device | str,
        *,
        lines: int = BLOCK_LINES,
        tile: int = DRAW_TILE,
    ) -> SampleWorkspace:
        """`lines` of 32 tokens are a block, and `tile` tokens of a list are read at once: for tests, powers of two."""
        blocks = (max_rows, triton.cdiv(vocab_size, lines * 32))

        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        return cls(
            block_top=empty(*blocks, dtype=torch.float32),
            block_token=empty(*blocks),
            block_sum=empty(*blocks, dtype=torch.float32),
            block_bins=empty(*blocks, NUM_BINS),
            block_limit=empty(*blocks),
            block_offset=empty(*blocks),
            row_top=empty(max_rows, dtype=torch.float32),
            row_mass=empty(max_rows, dtype=torch.int64),
            row_bound=empty(max_rows, dtype=torch.float32),
            list_size=empty(max_rows),
            list_logits=empty(max_rows, vocab_size, dtype=torch.float32),
            list_tokens=empty(max_rows, vocab_size),
            lines=lines,
            tile=tile,
        )


def sample_rows(
    logits: torch.Tensor,
    rows: SampleRows,
    tables: SampleTables,
    workspace: SampleWorkspace,
    out: torch.Tensor,
    *,
    filters: bool = True,
) -> None:
    """Draws as `reference.sample_rows` does, on the device: no synchronisation or allocation, launches by shapes alone.

    logits   [B, V] bfloat16, float16 or float32, last dimension contiguous; read only
    out      [B] int64
    filters  False promises that no row has top-k, top-p or min-p, and saves two launches
    """
    num_rows, vocab_size = logits.shape
    assert logits.stride(1) == 1 and num_rows <= len(workspace.list_size), (logits.shape, logits.stride())
    assert vocab_size == workspace.list_logits.shape[1], (vocab_size, workspace.list_logits.shape)
    num_blocks = workspace.block_top.shape[1]
    # A table that is not there is never read; a pointer is passed all the same.
    counts, masks, bias_ids, bias_values, last_tokens = (
        out if table is None else table
        for table in (tables.counts, tables.mask, tables.bias_ids, tables.bias_values, tables.last_token)
    )
    num_biases = 0 if tables.bias_ids is None else bias_ids.shape[1]
    arguments = {
        "logits": logits, "logits_stride": logits.stride(0), "out": out, "V": vocab_size, "NB": num_blocks,
        "W": 0 if tables.mask is None else masks.shape[1], "K": num_biases,
        "counts": counts, "masks": masks, "bias_ids": bias_ids, "bias_values": bias_values, "last_tokens": last_tokens,
        "HAS_COUNTS": tables.counts is not None, "HAS_MASK": tables.mask is not None,
        "HAS_BIAS": tables.bias_ids is not None, "HAS_LAST": tables.last_token is not None,
        "K_PAD": max(_BIASES, triton.next_power_of_2(num_biases)), "NB_PAD": triton.next_power_of_2(num_blocks),
        "LINES": workspace.lines, "TILE": workspace.tile, "FILTERS": filters,
        "WHOLE_LINES": vocab_size % 32 == 0,
    }  # fmt: skip
    arguments |= {f"{field.name}s": getattr(rows, field.name) for field in fields(rows)}
    arguments |= {field.name: getattr(workspace, field.name) for field in fields(workspace)}
    _launch(scan, (num_blocks, num_rows), arguments)
    _launch(settle, (num_rows,), arguments)
    if filters:
        _launch(collect, (num_blocks, num_rows), arguments)
        _launch(draw, (num_rows,), arguments)


def _launch(kernel: Any, grid: tuple[int, ...], arguments: dict[str, Any]) -> None:
    """Kernels name what they take; the same names mean the same everywhere."""
    # Without fused multiply-add, penalties round as the reference does.
    kernel[grid](**{name: arguments[name] for name in kernel.arg_names}, num_warps=NUM_WARPS, enable_fp_fusion=False)


_FLOATS = ("temperatures", "top_ps", "min_ps", "repetitions", "frequencys", "presences", "bias_values", "block_sum",
           "block_top", "row_top", "row_bound", "list_logits")  # fmt: skip
_LONGS = ("seeds", "positions", "last_tokens", "row_mass", "out")
_SCALARS = ("logits_stride", "V", "W", "K", "NB")


def compile_cases() -> list[CompileCase]:
    """Greedy with a mask, and all that a row can ask for, at a vocabulary of 151,936."""
    constants = {
        "HAS_COUNTS": True, "HAS_MASK": True, "HAS_BIAS": True, "HAS_LAST": True, "K_PAD": _BIASES, "NB_PAD": 64,
        "LINES": BLOCK_LINES, "TILE": DRAW_TILE, "FILTERS": True, "WHOLE_LINES": True,
    }  # fmt: skip
    greedy = constants | {"HAS_COUNTS": False, "HAS_BIAS": False, "FILTERS": False}
    filtered = greedy | {"HAS_MASK": False, "FILTERS": True}
    cases = [_case(f"{kernel.__name__} bf16", kernel, "bf16", constants) for kernel in (scan, settle, collect, draw)]
    cases += [_case(f"{kernel.__name__} fp32", kernel, "fp32", constants) for kernel in (scan, settle, collect)]
    cases += [_case(f"{kernel.__name__} bf16 greedy", kernel, "bf16", greedy) for kernel in (scan, settle)]
    return cases + [_case(f"{kernel.__name__} bf16 filters", kernel, "bf16", filtered) for kernel in (scan, collect)]


def _case(name: str, kernel: Any, dtype: str, constants: dict[str, Any]) -> CompileCase:
    types = dict.fromkeys(_FLOATS, "*fp32") | dict.fromkeys(_LONGS, "*i64") | dict.fromkeys(_SCALARS, "i32")
    types |= {"logits": f"*{dtype}", "counts": "*i16"}
    signature = {arg: types.get(arg, "*i32") for arg in kernel.arg_names if arg not in constants}
    pointers = (arg for arg, kind in signature.items() if kind.startswith("*") and arg not in ROW_ARGUMENTS)
    aligned = ("logits_stride", "V", *pointers)
    return CompileCase(
        name=name,
        kernel=kernel,
        signature=signature,
        constants={arg: value for arg, value in constants.items() if arg in kernel.arg_names},
        num_warps=NUM_WARPS,
        aligned=tuple(arg for arg in aligned if arg in signature),
        fusion=False,
    )
