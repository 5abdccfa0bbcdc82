"""`DecoderOps` in torch operators, for any device and dtype."""

from __future__ import annotations

import torch

from . import reference


class TorchOps:
    """See DecoderOps; the reference operations themselves, which allocate their intermediate results."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return reference.rms_norm(x, weight, eps)

    def add_rms_norm(self, hidden: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        hidden += delta
        return reference.rms_norm(hidden, weight, eps)

    def silu_multiply(self, gate_up: torch.Tensor) -> torch.Tensor:
        return reference.silu_multiply(gate_up)
