"""SplitMix64 on the device: a row's random number depends on its seed and position alone."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl


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
