"""Applies packed token bitmasks to logits."""

from __future__ import annotations

import torch

_BITS = torch.arange(32, dtype=torch.int32)


def unpack_mask(mask: torch.Tensor, size: int) -> torch.Tensor:
    """int32 [R, W] bitmask, lowest bit first, to bool [R, size]; positions past 32 * W are False."""
    bits = ((mask.unsqueeze(-1) >> _BITS.to(mask.device)) & 1).bool().flatten(1)
    if bits.shape[1] >= size:
        return bits[:, :size]
    return torch.nn.functional.pad(bits, (0, size - bits.shape[1]))


def mask_logits_(logits: torch.Tensor, mask: torch.Tensor, rows: torch.Tensor) -> None:
    """Sets to -inf, in place, the logits that a mask forbids.

        logits  [N, V]   float32
        mask    [R, W]   int32, W = ceil(V / 32); bit i % 32 of word i // 32 is token i, 1 = allowed
        rows    [R]      int64, the row of `logits` that each mask is for; distinct

    Reads R * V / 8 bytes of mask and R * V logits once.
    """
    allowed = unpack_mask(mask, logits.shape[1])
    logits[rows] = logits[rows].masked_fill_(~allowed, -torch.inf)
