"""Draws from rows with top-k, top-p or min-p, without sorting: likely tokens are listed, and a cut found among them.

`collect` [B, blocks]: reads each block that has likely tokens again and packs their logits and ids, in vocabulary
order, into the row's list, at an offset that `settle` knows from the counts of `scan`.
`draw` [B]: one program a row finds the cut, the logit at which top-k's count and then top-p's mass is reached, and how
many tokens of exactly that logit are kept; then it draws. The search is over the logits' bits (their order as whole
numbers), exact, with three pivots a pass and a bracket that shrinks to the logits really present. Dual pivots over
probabilities are known from FlashInfer's sampling kernels (arXiv 2501.01005); weights here are whole numbers, so that
passes agree to the last unit and a cut is never off by a rounding.

Cost on an H200 with B = 64, V = 151,936, bfloat16: `collect` reads at most the logits again, from L2: 19.5 MB at
5 TB/s is 4 us, and only the blocks with likely tokens, which often are few. `draw` reads a list of some hundred floats
about 6 times a search, from L1 at about 0.3 us a pass: 5 us for top-k and top-p. Launches: 2 x 1.3 us. A flat row,
whose nucleus is 100,000 tokens, takes about 25 us a pass: some 200 us, while others are long done.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from .logits import (
    ROW_ARGUMENTS,
    UNIT,
    bin_of,
    bin_scale,
    block_index,
    inverse_temperature,
    read_block,
    record,
    running_sum,
    weigh,
)
from .random_bits import scaled_floor, uniform_bits

DRAW_TILE = 1024
UNROLL = tl.constexpr(2)
"""Tiles of a long list whose reads are under way together."""


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
