"""Weight products at decode sizes: how near each comes to reading its weights once, and what 16 bits would take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from ....kernels.linear.formats import QuantisedWeight, dequantise, quantise_bytes, quantise_int4, quantise_int8
from ....kernels.linear.invariant_matmul import invariant_linear
from ....kernels.linear.select import select_product
from .. import roofline
from .case import Case, Settings
from .problem import Launch, Problem, measure

_WEIGHTS = {  # name -> inputs, outputs
    "8b gate_up": (4096, 24_576),
    "8b down": (12_288, 4096),
    "8b head": (4096, 151_936),
    "0.6b gate_up": (1024, 6144),
    "0.6b head": (1024, 151_936),
}


@dataclass(frozen=True)
class LinearInputs:
    """x [T, N] and a weight [M, N]. `product` is x W^T as a decoder computes it, and `right` the weight it goes by."""

    x: torch.Tensor
    weight: torch.Tensor
    right: torch.Tensor
    product: Callable[[torch.Tensor], torch.Tensor]


def linear_cases(settings: Settings) -> list[Case]:
    weights = {"tiny": (256, 160)} if settings.tiny else _WEIGHTS
    found = []
    for name, (num_inputs, num_outputs) in weights.items():
        for num_tokens in (2,) if settings.tiny else (1, 16, 64, 256):
            for kind in _KINDS:
                if kind == "bf16" or "head" not in name:
                    problem = _linear(settings, name, num_tokens, num_inputs, num_outputs, kind)
                    label = f"{name} {kind} {num_tokens}"
                    found.append(Case(label, partial(measure, problem, settings), 2.0))
    return found


def _linear(
    settings: Settings, name: str, num_tokens: int, num_inputs: int, num_outputs: int, kind: str
) -> Problem[LinearInputs]:
    """bf16 is cuBLAS: its row says how near the library comes to the floor, and the others are compared with it."""
    dtype: torch.dtype = getattr(torch, settings.dtype_name)
    how = _KINDS[kind]
    bits = how.bits or 8 * dtype.itemsize
    work = roofline.linear(num_tokens, num_inputs, num_outputs, weight_bits=bits, itemsize=dtype.itemsize)

    def make(seed: int) -> LinearInputs:
        generator = torch.Generator(settings.device).manual_seed(seed)
        x, weight = (
            torch.randn(shape, dtype=dtype, device=settings.device, generator=generator)
            for shape in ((num_tokens, num_inputs), (num_outputs, num_inputs))
        )
        return how.prepare(x, weight * num_inputs**-0.5)

    def cublas(inputs: LinearInputs) -> Launch:
        return lambda: F.linear(inputs.x, inputs.weight)

    peers: dict[str, Any] = {} if kind == "bf16" else {"cublas": cublas}
    return Problem(
        name="linear",
        cfg={"weight": name, "kind": kind, "T": num_tokens},
        work=work,
        num_bytes=work.bytes,
        make=make,
        ours=lambda inputs: lambda: inputs.product(inputs.x),
        peers=peers,
        reference=lambda inputs: inputs.x.float() @ inputs.right.float().T,
        max_error=how.max_error,
    )


def _plain(x: torch.Tensor, weight: torch.Tensor) -> LinearInputs:
    return LinearInputs(x, weight, weight, lambda x: F.linear(x, weight))


def _invariant(x: torch.Tensor, weight: torch.Tensor) -> LinearInputs:
    return LinearInputs(x, weight, weight, lambda x: invariant_linear(x, weight))


def _quantised(
    quantise: Callable[[torch.Tensor], QuantisedWeight], rounds_rows: bool, x: torch.Tensor, weight: torch.Tensor
) -> LinearInputs:
    stored = quantise(weight)
    product = select_product(stored, x.dtype, rounds_rows=rounds_rows)
    return LinearInputs(x, weight, dequantise(stored), lambda x: product(x, None))


@dataclass(frozen=True)
class _Kind:
    """Bits that a weight takes (None: as many as an activation), how it is prepared, and what error that may bring."""

    bits: float | None
    prepare: Callable[[torch.Tensor, torch.Tensor], LinearInputs]
    max_error: float | None = None


_FP8 = partial(quantise_bytes, dtype=torch.float8_e4m3fn)
_KINDS = {
    "bf16": _Kind(None, _plain),
    "invariant": _Kind(None, _invariant),
    "fp8": _Kind(8, partial(_quantised, _FP8, True), max_error=5e-2),  # activations are rounded to 4 bits, too
    "int8": _Kind(8, partial(_quantised, quantise_int8, False)),
    "int4": _Kind(4 + 16 / 128, partial(_quantised, quantise_int4, False)),
}
