"""Ceilings of the device: a large copy, a large read, a large matrix product. All else is a share of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import torch

from ..roofline import Work
from ..rows import Row
from .problem import Case, Settings
from .timing import Call, time_calls


def _cases(settings: Settings) -> list[Case]:
    return [Case(name, partial(_measure, settings, name, make)) for name, make in _MAKERS.items()]


def _copy(settings: Settings) -> tuple[Call, Work]:
    """Bytes read plus bytes written a second. Random data: memory may compress zeros."""
    count = (1 << 20) if settings.tiny else (1 << 30)  # 4 GB read and 4 GB written at full size
    source = torch.randint(-(1 << 31), 1 << 31, (count,), dtype=torch.int32, device=settings.device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source), Work(8.0 * count, 0.0)


def _read(settings: Settings) -> tuple[Call, Work]:
    count = (1 << 20) if settings.tiny else (1 << 30)
    source = torch.randn(count, dtype=torch.float32, device=settings.device)
    return lambda: torch.sum(source), Work(4.0 * count, float(count))


def _gemm(settings: Settings) -> tuple[Call, Work]:
    size, dtype = 128 if settings.tiny else 8192, settings.dtype
    left, right, out = (torch.randn(size, size, dtype=dtype, device=settings.device) for _ in range(3))
    return lambda: torch.mm(left, right, out=out), Work(3.0 * size * size * dtype.itemsize, 2.0 * size**3)


_MAKERS: dict[str, Callable[[Settings], tuple[Call, Work]]] = {"copy": _copy, "read": _read, "gemm": _gemm}


def _measure(settings: Settings, name: str, make: Callable[[Settings], tuple[Call, Work]]) -> Iterator[Row]:
    call, work = make(settings)
    first, again = (time_calls([call], device=settings.device, target_s=0.4) for _ in range(2))
    row = Row(sec="C", name=name).timed(again).rated(work)
    best, worst = sorted((median(first), median(again)))
    row.noise = worst / best - 1
    amount, row.unit = (work.flops, "FLOP/s") if name == "gemm" else (work.bytes, "B/s")
    row.value = amount / best
    yield row


FAMILIES = {"": _cases}
