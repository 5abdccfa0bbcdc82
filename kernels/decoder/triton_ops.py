"""`DecoderOps` in Triton kernels, one launch each, for float16, bfloat16 and float32."""

from __future__ import annotations

import torch

from .norm import add_rms_norm, rms_norm
from .silu import silu_multiply


class TritonOps:
    """See DecoderOps. A row's results do not depend, to the bit, on the other rows."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return rms_norm(x, weight, eps)

    def add_rms_norm(self, hidden: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return add_rms_norm(hidden, delta, weight, eps)

    def silu_multiply(self, gate_up: torch.Tensor) -> torch.Tensor:
        return silu_multiply(gate_up)
