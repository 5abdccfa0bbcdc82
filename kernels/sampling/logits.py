"""Shared parts of the sampling kernels: blocks of a row's adjusted logits, weights and bins, and the updates of a draw.

A block is LINES * 32 tokens, a tile [LINES, 32] with a mask word a line. Its borders depend on the vocabulary alone.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from .reference import COLDEST, NONE_ALLOWED, NOT_FINITE, ONE

BLOCK_LINES = 128
NUM_BINS = 32

ROW_ARGUMENTS = (
    *("temperatures", "top_ks", "top_ps", "min_ps", "seeds", "positions", "repetitions", "frequencys", "presences"),
    *("count_rows", "mask_rows", "bias_rows", "token_rows", "masks", "bias_ids", "bias_values", "out"),
)
"""Kernel arguments read a number at a time: where they lie, in which part of a buffer, is no reason to compile anew."""

GREEDY = tl.constexpr(0)
PLAIN = tl.constexpr(1)
FILTERED = tl.constexpr(2)

UNIT = tl.constexpr(float(ONE))
NO_TOKEN = tl.constexpr(NONE_ALLOWED)
NO_NUMBER = tl.constexpr(NOT_FINITE)
_COLDEST = tl.constexpr(COLDEST)
_LOG2_E = tl.constexpr(1.4426950408889634)

BELOW = tl.constexpr(30)
"""Bin of all tokens too unlikely for bins of their own; the bin after it is for those that are not allowed."""
_BINS_EACH = tl.constexpr(0.625)
_MOST_BINS = tl.constexpr(16384.0)


@triton.jit
def row_kind(temperature, top_k, top_p, min_p, V):
    """Kinds of draws: the likeliest token, by weights, or by what filters leave of them."""
    filtered = ((top_k > 0) & (top_k < V)) | (top_p < 1.0) | (min_p > 0.0)
    kind = tl.where(filtered, FILTERED, PLAIN)
    return tl.where((temperature == 0.0) | (top_k == 1), GREEDY, kind)


@triton.jit
def inverse_temperature(temperature):
    """Factor from logits to powers of two."""
    return tl.div_rn(1.4426950408889634, tl.maximum(temperature, _COLDEST))


@triton.jit
def bin_scale(scale):
    """Factor from logits to bins: 1.6 powers of two wide; 1.6 logits in hot rows, and wider in the very coldest.

    30 bins of 1.6 reach past 2^-42, below which tokens have no weight. The limits keep |logit * factor| small enough
    (2^21 for logits to 128) that its rounding moves a token by less than a quarter of a bin.
    """
    return tl.minimum(tl.maximum(scale, 1.0), _MOST_BINS) * _BINS_EACH


@triton.jit
def bin_of(x, top, scale):
    """Bin 0 .. 31 of each logit, counted down from that of the block's largest."""
    bins = tl.floor(top * scale) - tl.floor(x * scale)
    bins = tl.where(bins < BELOW, bins, 30.0).to(tl.int32)
    return tl.where(x == float("-inf"), 31, bins)


@triton.jit
def weigh(x, top, scale):
    """Fixed-point weights, int64, of logits x <= top."""
    return (tl.exp2((x - top) * scale) * UNIT).to(tl.int64)


@triton.jit
def block_index(block, LINES: tl.constexpr):
    """Token ids [LINES, 32] of a block."""
    return block * (LINES * 32) + tl.arange(0, LINES)[:, None] * 32 + tl.arange(0, 32)[None, :]


@triton.jit
def read_block(
    row,
    block,
    logits,  # [B, V] bfloat16, float16 or float32
    logits_stride,
    repetitions,  # SampleRows, float32 [B]
    frequencys,
    presences,
    count_rows,  # SampleRows, int32 [B]
    mask_rows,
    bias_rows,
    counts,  # SampleTables
    masks,
    bias_ids,
    bias_values,
    V,
    W,  # words of a mask row
    K,  # entries of a bias row
    HAS_COUNTS: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    K_PAD: tl.constexpr,
    LINES: tl.constexpr,
    WHOLE_LINES: tl.constexpr,  # V is a multiple of 32
):
    """A block's logits after penalties, bias and mask, float32 [LINES, 32], and whether those read are all finite.

    -inf: not allowed, or past the vocabulary. If not all are finite, the rest means nothing. Rounded as the reference
    does (launch without fused multiply-add), so that ties, and with them the greedy token and top-k, are the same.
    """
    # The rows of the tables first: reads on which others depend should wait together.
    count_row = tl.load(count_rows + row)
    bias_row = tl.load(bias_rows + row)
    mask_row = tl.load(mask_rows + row)
    index = block_index(block, LINES)
    inside = ((block * LINES + tl.arange(0, LINES)) * 32 < V)[:, None] if WHOLE_LINES else index < V
    x = tl.load(logits + row.to(tl.int64) * logits_stride + index, mask=inside, other=0.0).to(tl.float32)
    flaws = tl.sum(x * 0.0, 1)
    if HAS_COUNTS and count_row >= 0:
        seen = tl.load(counts + count_row.to(tl.int64) * V + index, mask=inside, other=0).to(tl.int32)
        factor = tl.load(repetitions + row)
        x = tl.where(seen != 0, tl.where(x > 0.0, tl.div_rn(x, factor), x * factor), x)
        times = seen & 0x7FFF
        loss = tl.load(frequencys + row) * times.to(tl.float32) + tl.load(presences + row)
        x = tl.where(times > 0, x - loss, x)
    if HAS_BIAS and bias_row >= 0:
        k = tl.arange(0, K_PAD)
        ids_at = bias_ids + bias_row.to(tl.int64) * K
        ids = tl.load(ids_at + k, mask=k < K, other=2147483647)
        first = tl.sum((ids < block * (LINES * 32)).to(tl.int32), 0)
        stop = tl.sum((ids < tl.minimum((block + 1) * (LINES * 32), V)).to(tl.int32), 0)
        for entry in range(first, stop):
            value = tl.load(bias_values + bias_row.to(tl.int64) * K + entry)
            x = tl.where(index == tl.load(ids_at + entry), x + value, x)
    if HAS_MASK:
        word = block * LINES + tl.arange(0, LINES)
        words = tl.full([LINES], -1, tl.int32)
        if mask_row >= 0:
            words = tl.load(masks + mask_row.to(tl.int64) * W + word, mask=word < W, other=0)
        inside = inside & ((words[:, None] & (1 << tl.arange(0, 32))[None, :]) != 0)
    return tl.where(inside, x, float("-inf")), tl.sum(flaws, 0) == 0.0


@triton.jit
def running_sum(x):
    """Cumulative sums [LINES, 32] of a tile, in the order of its token ids."""
    inner = tl.cumsum(x, 1)
    line = tl.sum(x, 1)
    return inner + (tl.cumsum(line, 0) - line)[:, None]


@triton.jit
def record(
    row,
    token,
    out,
    count_rows,
    counts,
    token_rows,
    last_tokens,
    V,
    HAS_COUNTS: tl.constexpr,
    HAS_LAST: tl.constexpr,
):
    """Writes a row's token, counts it (up to 32767; bit 15 stays) and makes it its slot's last one."""
    tl.store(out + row, token)
    if token >= 0:
        if HAS_COUNTS:
            count_row = tl.load(count_rows + row)
            if count_row >= 0:
                at = counts + count_row.to(tl.int64) * V + token
                times = tl.load(at).to(tl.int32)
                tl.store(at, tl.where((times & 0x7FFF) == 0x7FFF, times, times + 1).to(tl.int16))
        if HAS_LAST:
            token_row = tl.load(token_rows + row)
            if token_row >= 0:
                tl.store(last_tokens + token_row, token)


@triton.jit
def mix(x):
    """SplitMix64's step from `x`, uint64: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"."""
    x = x + 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def uniform_bits(seed, position):
    """53 random bits, the highest of a uint64: u * 2^64 for the u in [0, 1) of (seed, position), both int64."""
    bits = mix(mix(seed.to(tl.uint64, bitcast=True)) ^ position.to(tl.uint64, bitcast=True))
    return (bits >> 11) << 11


@triton.jit
def scaled_floor(fraction, total):
    """floor(fraction / 2^64 * total) of uint64 `fraction` and int64 `total` >= 0: below `total` if that is not 0."""
    return tl.umulhi(fraction, total.to(tl.uint64, bitcast=True)).to(tl.int64, bitcast=True)
