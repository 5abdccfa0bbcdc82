"""Ceilings of the device: a large copy, a large read, a large matrix product. All other results relate to these."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ..roofline import Work
from .problem import Problem, Settings


def _problems(settings: Settings) -> list[Problem[Any]]:
    """Data are random: memory may compress zeros."""
    device, dtype = settings.device, settings.dtype
    count = (1 << 20) if settings.tiny else (1 << 30)  # a copy reads 4 GB and writes 4 GB at full size
    size = 128 if settings.tiny else 8192

    def buffers(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        source = torch.randint(-(1 << 31), 1 << 31, (count,), dtype=torch.int32, device=device)
        return source, torch.empty_like(source)

    def numbers(seed: int) -> torch.Tensor:
        return torch.randn(count, dtype=torch.float32, device=device)

    def matrices(seed: int) -> list[torch.Tensor]:
        return [torch.randn(size, size, dtype=dtype, device=device) for _ in range(3)]

    product = Work(3.0 * size * size * dtype.itemsize, 2.0 * size**3)
    ceiling: Any = partial(Problem, cfg={}, target_s=0.4)
    return [
        ceiling("copy", work=Work(8.0 * count, 0.0), make=buffers, ours=lambda x: lambda: x[1].copy_(x[0]), unit="B/s"),
        ceiling("read", work=Work(4.0 * count, count), make=numbers, ours=lambda x: lambda: torch.sum(x), unit="B/s"),
        ceiling("gemm", work=product, make=matrices, ours=lambda x: lambda: torch.mm(*x[:2], out=x[2]), unit="FLOP/s"),
    ]


FAMILIES = {"": _problems}
