"""Inputs and outputs of a decode step on the device, and its plain-torch reference."""

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


def begin_decode(
    slots: torch.Tensor,
    last_token: torch.Tensor,
    position: torch.Tensor,
    page_table: torch.Tensor,
    page_size: int,
    inputs: DecodeInputs,
) -> None:
    """Fills `inputs` with the next step of the sequences that sit in `slots`.

    slots         int32 [B]      slot 0 is nobody's and may come up often: its position is 0, its page is page 0
    last_token    int64 [S]      of each slot: the token drawn last
    position      int64 [S]      where that token goes
    page_table    int32 [S, P]
    """
    slot = slots.long()
    at = position[slot]
    inputs.tokens.copy_(last_token[slot])
    inputs.positions.copy_(at)
    inputs.draw_positions.copy_(at + 1)
    inputs.context_len.copy_(at + 1)
    inputs.write_slot.copy_(page_table[slot, at // page_size].long() * page_size + at % page_size)


def end_decode(slots: torch.Tensor, drawn: torch.Tensor, last_token: torch.Tensor, position: torch.Tensor) -> None:
    """Puts the tokens `drawn` int64 [B] in their slots, and moves the positions on. Slot 0 stays as it is.

    A negative entry of `drawn` says that there is no token; the slot then goes on with token 0.
    """
    real = slots > 0
    slot = slots[real].long()
    last_token[slot] = drawn[real].clamp(min=0)
    position[slot] += 1
