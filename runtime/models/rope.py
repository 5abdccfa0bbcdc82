"""Rotary positions: the angles of a step's tokens, in torch."""

from __future__ import annotations

import torch

from ..checkpoints.config import RopeConfig
from .rope_frequencies import attention_factor, rope_frequencies

_TABLE_CHUNK = 16384
"""Positions computed at a time: what building a table needs beside it."""


class RotaryPositions:
    """Cosines and sines of token positions, as kernels.decoder.reference.rotate takes them.

    num_tabulated    computes the angles of positions 0 .. num_tabulated once, 8 * head_dim bytes each, and `angles`
                     looks them up in one launch: for a GPU, where the dozen launches of the formula cost more than
                     its numbers. The values are the same to the bit. 0: each call computes, any position is served
    """

    def __init__(self, rope: RopeConfig, head_dim: int, device: torch.device, num_tabulated: int = 0) -> None:
        self._frequencies = torch.from_numpy(rope_frequencies(rope, head_dim)).to(device)
        self._factor = attention_factor(rope)
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
