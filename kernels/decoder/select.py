"""Operations of a decoder and products of few rows: their interface, and the choice of implementation for a device."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..linear.select import FewRowsProduct, select_few_rows
from . import reference


@dataclass(frozen=True)
class DecoderOps:
    """Functions that allocate their results and never wait for the device: all may be recorded in a CUDA graph.

    rms_norm(x, weight, eps)
        x / sqrt(mean(x^2) + eps) * weight over the last dimension, computed in float32 at least.
        x [T, N]; weight [N], the dtype of `x`; returns [T, N], the dtype of `x`.
    add_rms_norm(hidden, delta, weight, eps)
        `hidden += delta` in place, rounded to its dtype; returns `rms_norm` of the sum, as rounded.
        hidden, delta, result [T, N].
    silu_multiply(gate_up)
        silu(gate) * up. gate_up [T, 2 * N], the gate's half, then the up half; returns [T, N].
    few_rows(weight)
        what multiplies few rows by a plain weight, or None: torch's product does. Once a weight.
    """

    rms_norm: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
    add_rms_norm: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]
    silu_multiply: Callable[[torch.Tensor], torch.Tensor]
    few_rows: Callable[[torch.Tensor], FewRowsProduct | None]


def _add_rms_norm(hidden: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    hidden += delta
    return reference.rms_norm(hidden, weight, eps)


def _no_few_rows(weight: torch.Tensor) -> FewRowsProduct | None:
    return None


TORCH_OPS = DecoderOps(reference.rms_norm, _add_rms_norm, reference.silu_multiply, _no_few_rows)
"""Torch operators, for any device and dtype: the reference operations, which allocate their intermediate results."""


def triton_ops() -> DecoderOps:
    """Triton kernels, one launch each, for float16, bfloat16 and float32. A row's results do not depend, to the bit, on
    the other rows."""
    from . import norm, silu

    return DecoderOps(norm.rms_norm, norm.add_rms_norm, silu.silu_multiply, select_few_rows)


def select_ops(device: str | torch.device, backend: str = "auto") -> DecoderOps:
    """The operations that a decoder on `device` is given.

    backend    "triton"; "torch"; or "auto": Triton on a GPU if it is installed, else torch

    Raises:
        ValueError: no such backend.
    """
    if backend not in ("auto", "torch", "triton"):
        raise ValueError(f"backend must be auto, torch or triton, got {backend!r}")
    on_gpu = torch.device(device).type == "cuda"
    if backend == "triton" or (backend == "auto" and on_gpu and importlib.util.find_spec("triton") is not None):
        return triton_ops()
    return TORCH_OPS
