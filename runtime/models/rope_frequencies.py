"""Frequencies of rotary positions, and tables of their angles, in numpy."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ..checkpoints.config import RopeConfig

Floats = npt.NDArray[np.float32]

_BLOCK = 4096
"""Number of positions whose angles are held in float64 at a time."""


def rope_frequencies(rope: RopeConfig, head_dim: int) -> Floats:
    """Returns the radians per position of each rotated pair, float32 [head_dim / 2]."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    # The power is rounded once, as by an exact float32 function.
    powers: Floats = np.power(rope.theta, exponents.astype(np.float64)).astype(np.float32)
    frequencies: Floats = np.float32(1.0) / powers
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _llama3_frequencies(rope, frequencies)
    if rope.kind == "yarn":
        return _yarn_frequencies(rope, frequencies, head_dim)
    if rope.kind == "factors":
        factors: Floats = np.array(rope.frequency_factors, np.float32)
        return frequencies / factors
    return frequencies


def _llama3_frequencies(rope: RopeConfig, frequencies: Floats) -> Floats:
    """Stretches long wavelengths by `factor`, keeps short ones, and interpolates linearly in 1 / wavelength between."""
    turns = rope.original_max_position * frequencies / (2 * math.pi)  # full turns over the trained context
    low, high = rope.low_frequency_factor, rope.high_frequency_factor
    kept: Floats = ((turns - low) / (high - low)).clip(0.0, 1.0)
    blended: Floats = (1.0 - kept) * frequencies / rope.factor + kept * frequencies
    return blended


def _yarn_frequencies(rope: RopeConfig, frequencies: Floats, head_dim: int) -> Floats:
    """Applies a ramp over the pair's index, kept to stretched: Peng et al. 2023 (arXiv 2309.00071), section 3.2."""

    def pair_index(turns: float) -> float:
        """Returns the (fractional) index of the pair that makes this many turns over the trained context."""
        return head_dim * math.log(rope.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_index(rope.beta_fast), pair_index(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low if high != low else 0.001
    stretched = ((np.arange(head_dim // 2, dtype=np.float32) - low) / width).clip(0.0, 1.0)
    blended: Floats = frequencies / rope.factor * stretched + frequencies * (1.0 - stretched)
    return blended


def attention_factor(rope: RopeConfig) -> float:
    """Returns the factor of cosines and sines; only yarn changes it."""
    if rope.kind != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    return 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1.0 else 1.0


def rope_table(rope: RopeConfig, head_dim: int, num_positions: int) -> tuple[Floats, Floats]:
    """Returns cosines and sines of positions 0 .. num_positions, [num_positions, head_dim / 2].

    Besides the result it takes memory for a few thousand positions at a time.
    """
    frequencies, factor = rope_frequencies(rope, head_dim), np.float32(attention_factor(rope))
    cosines, sines = (np.empty((num_positions, head_dim // 2), np.float32) for _ in range(2))
    for start in range(0, num_positions, _BLOCK):
        block = slice(start, min(start + _BLOCK, num_positions))
        positions = np.arange(block.start, block.stop, dtype=np.float32)[:, None]
        angles = (positions * frequencies).astype(np.float64)
        cosines[block] = np.cos(angles).astype(np.float32) * factor
        sines[block] = np.sin(angles).astype(np.float32) * factor
    return cosines, sines


def rope_table_bytes(head_dim: int, num_positions: int) -> int:
    """Returns the bytes of `rope_table`."""
    return 2 * num_positions * (head_dim // 2) * 4
