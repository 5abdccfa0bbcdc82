"""Chooses the product for a device: by a quantised weight, of few rows, or independent of the batch to the bit."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch

from .formats import ByteWeight, PackedWeight, QuantisedWeight, linear_dequantised, linear_rows_fp8, linear_rows_int8

Product = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
"""(x [T, N], bias [M] or None) -> [T, M]."""

_FP8 = torch.float8_e4m3fn


def has_kernels(device: torch.device | str, dtype: torch.dtype) -> bool:
    """Tells whether kernels multiply quantised weights by activations of `dtype` there. Otherwise plain torch serves,
    which dequantises first: right, but slower than weights dequantised once."""
    on_gpu = torch.device(device).type == "cuda"
    return on_gpu and dtype in (torch.bfloat16, torch.float16) and importlib.util.find_spec("triton") is not None


def has_fp8(device: torch.device | str) -> bool:
    """Tells whether the device computes with fp8."""
    return torch.device(device).type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def select_product(
    weight: QuantisedWeight, dtype: torch.dtype, *, rounds_rows: bool = False, invariant: bool = False
) -> Product:
    """The product with `weight`, on its device, of activations of `dtype`.

    rounds_rows   round the activations, too, row by row, to the dtype of the weight's codes (ByteWeight, a scale a row)
    invariant     a row's result does not depend on how many others there are, to the bit
    """
    device = weight.scales.device
    kernels = has_kernels(device, dtype)
    if isinstance(weight, PackedWeight):
        if rounds_rows:
            raise ValueError("activations are rounded for a ByteWeight only")
        return _packed(weight, invariant=invariant) if kernels else _plain(linear_dequantised, weight)
    if rounds_rows and weight.group is not None:
        raise ValueError("activations are rounded for a weight of one scale a row only")
    if weight.codes.dtype == _FP8:
        return _fp8(weight, kernels=kernels and has_fp8(device), rounds_rows=rounds_rows, invariant=invariant)
    if kernels and rounds_rows:
        from .bytes_linear import linear_rows_int8 as product
        from .tiles import make_counters

        return partial(_with_counters, product, weight, make_counters(weight.shape[0], device))
    return _plain(linear_rows_int8 if rounds_rows else linear_dequantised, weight)


def _packed(weight: PackedWeight, *, invariant: bool) -> Product:
    from .packed_linear import linear_packed
    from .tiles import make_counters

    arrived = make_counters(weight.shape[0], weight.scales.device)
    return partial(_with_counters, partial(linear_packed, invariant=invariant), weight, arrived)


def _fp8(weight: ByteWeight, *, kernels: bool, rounds_rows: bool, invariant: bool) -> Product:
    if not kernels:
        return _plain(linear_rows_fp8 if rounds_rows else linear_dequantised, weight)
    from .bytes_linear import linear_bytes
    from .bytes_linear import linear_rows_fp8 as product
    from .tiles import make_counters

    if rounds_rows and not invariant and weight.shape[0] % 16 == 0 and weight.shape[1] % 16 == 0:
        return _plain(product, weight)
    # torch has no product of such shapes, or chooses by the number of rows: activations stay as they are.
    arrived = make_counters(weight.shape[0], weight.scales.device)
    return partial(_with_counters, partial(linear_bytes, invariant=invariant), weight, arrived)


def _plain(product: Callable[..., torch.Tensor], weight: QuantisedWeight) -> Product:
    return lambda x, bias: product(x, weight, bias)


def _with_counters(
    product: Callable[..., torch.Tensor],
    weight: QuantisedWeight,
    arrived: torch.Tensor,
    x: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    return product(x, weight, bias, arrived)


class FewRowsProduct(Protocol):
    """See few_rows.FewRows."""

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor | None: ...

    def multiply_gated(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor | None: ...

    def multiply_normed(
        self,
        hidden: torch.Tensor,
        delta: torch.Tensor,
        norm: torch.Tensor,
        eps: float,
        bias: torch.Tensor | None,
        *,
        gated: bool,
    ) -> tuple[torch.Tensor, torch.Tensor] | None: ...


def select_few_rows(weight: torch.Tensor) -> FewRowsProduct | None:
    """The products of few rows with a plain weight, on its device; None if only torch has them."""
    if not has_kernels(weight.device, weight.dtype) or not weight.is_contiguous():
        return None
    from .few_rows import FewRows

    return FewRows(weight)


class InvariantProduct(Protocol):
    """x weight^T + bias, a row of it depending on that row of x alone, to the bit; see invariant_matmul."""

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor: ...


def select_invariant_product() -> InvariantProduct:
    """The one that there is, for GPUs and for Triton's interpreter."""
    from .invariant_matmul import invariant_linear

    return invariant_linear
