"""Chooses the implementation of a linear layer whose rows do not depend on each other."""

from __future__ import annotations

from typing import Protocol

import torch


class InvariantProduct(Protocol):
    """x weight^T + bias, a row of it depending on that row of x alone, to the bit; see invariant_matmul."""

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor: ...


def select_invariant_product() -> InvariantProduct:
    """The one that there is, for GPUs and for Triton's interpreter."""
    from .invariant_matmul import invariant_linear

    return invariant_linear
