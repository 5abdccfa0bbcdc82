"""Batch-invariant projections, which the deterministic mode gives a decoder."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...kernels.linear.select import InvariantProduct, select_invariant_product
from .decoder import Decoder, Linear, Projection
from .quantised_linear import QuantisedLinear, StackedLinear


@dataclass(frozen=True)
class InvariantLinear:
    """x W^T + b through `product`. `weight` [M, N], `bias` [M] or None."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    product: InvariantProduct

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.product(x, self.weight, self.bias)


def make_invariant(decoder: Decoder, product: InvariantProduct | None = None) -> None:
    """Replaces every projection of `decoder`, its head included, by one that is independent of the batch. In place.

    product    operator for the products; None: the Triton kernel

    Quantised projections that are already invariant are kept.

    Raises:
        TypeError: a projection is neither of these nor a `Linear`, so that its order of sums is unknown. None is
            replaced.
    """
    chosen = select_invariant_product() if product is None else product

    def replaced(name: str, projection: Projection) -> Projection:
        if isinstance(projection, QuantisedLinear | StackedLinear) and projection.invariant:
            return projection
        if not isinstance(projection, Linear):
            raise TypeError(f"{name} is a {type(projection).__name__}: only a Linear can be made invariant afterwards")
        return InvariantLinear(projection.weight.contiguous(), projection.bias, chosen)

    head = replaced("head", decoder.head)
    layers = [
        {name: replaced(f"layers.{index}.{name}", getattr(layer, name)) for name in ("qkv", "out", "gate_up", "down")}
        for index, layer in enumerate(decoder.layers)
    ]
    decoder.head = head
    for layer, projections in zip(decoder.layers, layers, strict=True):
        for name, projection in projections.items():
            setattr(layer, name, projection)
