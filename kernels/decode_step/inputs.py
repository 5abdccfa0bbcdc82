"""Inputs of a decode step on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class DecodeInputs:
    """Inputs of a decode step of B rows; tensors that stay, so that a graph can be replayed on them.

    tokens, positions   int64 [B]   the token that was drawn last, and where it goes
    draw_positions      int64 [B]   where the token goes that is drawn now: what its random number depends on
    context_len         int32 [B]   tokens in the cache once this one's keys and values are written
    write_slot          int64 [B]   page * page_size + offset of it
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    draw_positions: torch.Tensor
    context_len: torch.Tensor
    write_slot: torch.Tensor

    @classmethod
    def empty(cls, num_rows: int, device: torch.device | str) -> DecodeInputs:
        def vector(dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(num_rows, dtype=dtype, device=device)

        return cls(
            vector(torch.int64), vector(torch.int64), vector(torch.int64), vector(torch.int32), vector(torch.int64)
        )

    def first(self, num_rows: int) -> DecodeInputs:
        """Views of the first rows."""
        return DecodeInputs(
            self.tokens[:num_rows],
            self.positions[:num_rows],
            self.draw_positions[:num_rows],
            self.context_len[:num_rows],
            self.write_slot[:num_rows],
        )
