"""Ceilings of the device: a large copy, a large read, a large matrix product. All else is a share of these."""

from __future__ import annotations

from typing import Any

import torch

from ..roofline import Work
from .problem import Launch, Problem, Settings

Tensors = tuple[torch.Tensor, ...]

_TARGET_S = 0.4


def _problems(settings: Settings) -> list[Problem[Any]]:
    """Data are random: memory may compress zeros."""
    device, dtype = settings.device, settings.dtype
    count = (1 << 20) if settings.tiny else (1 << 30)  # a copy reads 4 GB and writes 4 GB at full size
    size = 128 if settings.tiny else 8192

    def two_buffers(seed: int) -> Tensors:
        source = torch.randint(-(1 << 31), 1 << 31, (count,), dtype=torch.int32, device=device)
        return source, torch.empty_like(source)

    def copy(inputs: Tensors) -> Launch:
        return lambda: inputs[1].copy_(inputs[0])

    def numbers(seed: int) -> torch.Tensor:
        return torch.randn(count, dtype=torch.float32, device=device)

    def read(source: torch.Tensor) -> Launch:
        return lambda: torch.sum(source)

    def matrices(seed: int) -> Tensors:
        return tuple(torch.randn(size, size, dtype=dtype, device=device) for _ in range(3))

    def multiply(inputs: Tensors) -> Launch:
        return lambda: torch.mm(inputs[0], inputs[1], out=inputs[2])

    product = Work(3.0 * size * size * dtype.itemsize, 2.0 * size**3)
    return [
        Problem("copy", {}, Work(8.0 * count, 0.0), two_buffers, copy, unit="B/s", target_s=_TARGET_S),
        Problem("read", {}, Work(4.0 * count, float(count)), numbers, read, unit="B/s", target_s=_TARGET_S),
        Problem("gemm", {}, product, matrices, multiply, unit="FLOP/s", target_s=_TARGET_S),
    ]


FAMILIES = {"": _problems}
