"""Rotary positions: the frequencies of a config, and the angles of a step's tokens."""

from __future__ import annotations

import math

import torch

from .config import RopeConfig


class RotaryPositions:
    """Cosines and sines of token positions, as kernels.reference.rotate takes them."""

    def __init__(self, rope: RopeConfig, head_dim: int, device: torch.device) -> None:
        self._frequencies = rope_frequencies(rope, head_dim).to(device)
        self._factor = _attention_factor(rope)

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Once a step, for all layers: cosines and signed sines.

        positions   [T] int64
        returns     [T, 1, head_dim] float32, twice
        """
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
