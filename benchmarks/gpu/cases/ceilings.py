"""Ceilings of the device: a large copy, a large read, a large matrix product. All else is a share of these."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..roofline import Work
from ..rows import Row
from .case import Case, Settings
from .timing import Call, time_calls


def cases(settings: Settings) -> list[Case]:
    return [
        Case("copy", lambda: _copy(settings), 5.0),
        Case("read", lambda: _read(settings), 5.0),
        Case("gemm", lambda: _gemm(settings), 5.0),
    ]


def _copy(settings: Settings) -> Iterator[Row]:
    """Bytes read plus bytes written a second. Random data: memory may compress zeros."""
    count = (1 << 20) if settings.tiny else (1 << 30)  # 4 GB read and 4 GB written at full size
    source = torch.randint(-(1 << 31), 1 << 31, (count,), dtype=torch.int32, device=settings.device)
    target = torch.empty_like(source)
    yield _row(settings, "copy", lambda: target.copy_(source), Work(8.0 * count, 0.0))


def _read(settings: Settings) -> Iterator[Row]:
    count = (1 << 20) if settings.tiny else (1 << 30)
    source = torch.randn(count, dtype=torch.float32, device=settings.device)
    yield _row(settings, "read", lambda: torch.sum(source), Work(4.0 * count, float(count)))


def _gemm(settings: Settings) -> Iterator[Row]:
    size = 128 if settings.tiny else 8192
    dtype = getattr(torch, settings.dtype_name)
    left, right = (torch.randn(size, size, dtype=dtype, device=settings.device) for _ in range(2))
    out = torch.empty_like(left)
    work = Work(3.0 * size * size * dtype.itemsize, 2.0 * size**3)
    yield _row(settings, "gemm", lambda: torch.mm(left, right, out=out), work)


def _row(settings: Settings, name: str, call: Call, work: Work) -> Row:
    first, timing = (time_calls([call], device=settings.device, target_s=0.4) for _ in range(2))
    row = Row(sec="C", name=name, us=timing.us, us_p10=timing.us_p10, us_p90=timing.us_p90).rated(work)
    row.noise = abs(first.us - timing.us) / min(first.us, timing.us)
    amount, row.unit = (work.flops, "FLOP/s") if name == "gemm" else (work.bytes, "B/s")
    row.value = amount / (min(first.us, timing.us) / 1e6)
    return row
