"""Rotary positions: the frequencies of a config, and the angles of a step's tokens."""

from __future__ import annotations

import math

import torch

from .config import RopeConfig

_TABLE_CHUNK = 16384
"""Positions computed at a time: what building a table needs beside it."""


class RotaryPositions:
    """Cosines and sines of token positions, as kernels.reference.rotate takes them.

    num_tabulated    computes the angles of positions 0 .. num_tabulated once, 8 * head_dim bytes each, and `angles`
                     looks them up in one launch: for a GPU, where the dozen launches of the formula cost more than
                     its numbers. The values are the same to the bit. 0: each call computes, any position is served
    """

    def __init__(self, rope: RopeConfig, head_dim: int, device: torch.device, num_tabulated: int = 0) -> None:
        self._frequencies = rope_frequencies(rope, head_dim).to(device)
        self._factor = _attention_factor(rope)
        self._table: torch.Tensor | None = None  # [num_tabulated, 2, 1, head_dim] float32
        if num_tabulated:
            self._table = torch.empty(num_tabulated, 2, 1, head_dim, device=device)
            for start in range(0, num_tabulated, _TABLE_CHUNK):
                positions = torch.arange(start, min(start + _TABLE_CHUNK, num_tabulated), device=device)
                torch.stack(self._compute(positions), dim=1, out=self._table[start : start + _TABLE_CHUNK])

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Once a step, for all layers: cosines and signed sines.

        positions   [T] int64
        returns     [T, 1, head_dim] float32, twice
        """
        if self._table is None:
            return self._compute(positions)
        cos, sin = self._table.index_select(0, positions).unbind(1)
        return cos, sin

    def _compute(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = positions[:, None, None].float() * self._frequencies
        cos, sin = angles.cos(), angles.sin()
        if self._factor != 1.0:
            cos, sin = cos * self._factor, sin * self._factor
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rope_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Radians per position of each rotated pair, float32 [head_dim / 2]."""
    frequencies = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _llama3_frequencies(rope, frequencies)
    if rope.kind == "yarn":
        return _yarn_frequencies(rope, frequencies, head_dim)
    if rope.kind == "factors":
        return frequencies / torch.tensor(rope.frequency_factors)
    return frequencies


def _llama3_frequencies(rope: RopeConfig, frequencies: torch.Tensor) -> torch.Tensor:
    """Long wavelengths are stretched by `factor`, short ones kept; in between linearly in 1 / wavelength."""
    turns = rope.original_max_position * frequencies / (2 * math.pi)  # full turns over the trained context
    low, high = rope.low_frequency_factor, rope.high_frequency_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1.0 - kept) * frequencies / rope.factor + kept * frequencies


def _yarn_frequencies(rope: RopeConfig, frequencies: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Peng et al. 2023 (arXiv 2309.00071), section 3.2: a ramp over the pair's index, from kept to stretched."""

    def pair_index(turns: float) -> float:
        """The (fractional) pair that makes this many turns over the trained context."""
        return head_dim * math.log(rope.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_index(rope.beta_fast), pair_index(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low if high != low else 0.001
    stretched = ((torch.arange(head_dim // 2).float() - low) / width).clamp(0.0, 1.0)
    return frequencies / rope.factor * stretched + frequencies * (1.0 - stretched)


def _attention_factor(rope: RopeConfig) -> float:
    """What cosines and sines are multiplied by; only yarn changes it."""
    if rope.kind != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    return 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1.0 else 1.0
