"""Interface of a decoder's operations between its matrix products, so that a device can have its own."""

from __future__ import annotations

from typing import Protocol

import torch


class DecoderOps(Protocol):
    """Each call allocates its result; none waits for the device, so that all may be recorded in a CUDA graph."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x / sqrt(mean(x^2) + eps) * weight over the last dimension, computed in float32 at least.

        x          [T, N]
        weight     [N]        the dtype of `x`
        returns    [T, N]     the dtype of `x`
        """

    def add_rms_norm(self, hidden: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """`hidden += delta` in place, rounded to its dtype; returns `rms_norm` of the sum, as rounded.

        hidden, delta, returns    [T, N]
        """

    def silu_multiply(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up.

        gate_up    [T, 2 * N]    the gate's half, then the up half
        returns    [T, N]
        """
