"""Reference operations in plain torch, short and obviously correct, for comparison with the faster kernels."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, in the dtype of `x`, computed in float32 at least.

    x        [..., N]    any float dtype
    weight   [N]         the dtype of `x`
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    return F.rms_norm(x.to(wide), weight.shape, weight.to(wide), eps).to(x.dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions: turns the pair (x[i], x[i + D/2]) of every head by the token's i-th angle, in float32 at least.

    x          [T, H, D]     any float dtype
    cos        [T, 1, D]     float32; both halves of D hold cos(angle)
    sin        [T, 1, D]     float32; -sin(angle) in the first half of D, sin(angle) in the second
    returns    [T, H, D]     the dtype of `x`
    """
    swapped = x.roll(x.shape[-1] // 2, -1)
    return torch.addcmul(x * cos, swapped.to(torch.promote_types(x.dtype, cos.dtype)), sin).to(x.dtype)


def silu_multiply(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, where the last dimension of `gate_up` holds the gate's half, then the up half."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
