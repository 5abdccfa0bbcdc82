"""RMSNorm of rows, alone or of the sum with the residual.

Floor: 2 * T * N elements move (x in, result out), 4 * T * N with the residual (both in, both out), 4 FLOPs an element:
bandwidth alone counts, and below a few hundred rows the launch alone. Zhang, Sennrich 2019, arXiv 1910.07467.

One program a row, in registers from the first read to the last write, with a configuration that depends on N only: a
row's result does not depend, to the bit, on how many rows there are.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..compile_case import CompileCase

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_MAX_N = 16384  # 32 numbers to a thread; a wider row would not stay in registers


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See DecoderOps.rms_norm; rows of `x` may be strided, N <= 16384.

    Raises:
        ValueError: a shape or a dtype that the kernel does not serve.
    """
    return _launch(x, None, weight, eps)


def add_rms_norm(hidden: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See DecoderOps.add_rms_norm; rows may be strided, N <= 16384.

    Raises:
        ValueError: a shape or a dtype that the kernel does not serve.
    """
    if delta.shape != hidden.shape or delta.dtype != hidden.dtype or delta.stride(1) != 1:
        raise ValueError(f"delta must be {hidden.dtype} {list(hidden.shape)}, got {delta.dtype} {list(delta.shape)}")
    return _launch(hidden, delta, weight, eps)


def _launch(x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    num_rows, size = x.shape
    if x.dtype not in _DTYPES or x.stride(1) != 1 or not 0 < size <= _MAX_N:
        raise ValueError(f"x must be [T, N <= {_MAX_N}] of a 16- or 32-bit float, got {x.dtype} {list(x.shape)}")
    if weight.shape != (size,) or not weight.is_contiguous():
        raise ValueError(f"weight must be contiguous [{size}], got {list(weight.shape)}")
    out = torch.empty((num_rows, size), dtype=x.dtype, device=x.device)
    if num_rows == 0:
        return out
    block = triton.next_power_of_2(size)
    _rms_norm_kernel[(num_rows,)](
        x,
        x if delta is None else delta,
        weight,
        out,
        x.stride(0),
        x.stride(0) if delta is None else delta.stride(0),
        eps,
        N=size,
        BLOCK_N=block,
        ADD=delta is not None,
        num_warps=_num_warps(block),
    )
    return out


def _num_warps(block: int) -> int:
    """16 numbers to a thread, two 16-byte loads of 16-bit numbers, until a program has 512 threads."""
    return min(max(block // 512, 1), 16)


@triton.jit
def _rms_norm_kernel(
    x,
    delta,
    weight,
    out,
    x_stride,
    delta_stride,
    eps,
    N: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ADD: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK_N)
    inside = n < N
    value = tl.load(x + row * x_stride + n, mask=inside, other=0.0)
    factor = tl.load(weight + n, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        more = tl.load(delta + row * delta_stride + n, mask=inside, other=0.0)
        value = (value.to(tl.float32) + more.to(tl.float32)).to(value.dtype)
        tl.store(x + row * x_stride + n, value, mask=inside)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / N + eps)
    tl.store(out + row * N + n, (wide * scale * factor).to(value.dtype), mask=inside)


def compile_cases() -> list[CompileCase]:
    """Hidden sizes from the smallest to the largest model."""
    sizes = (576, 1024, 4096, 5120, 16384)
    return [
        *(_case(size, "bf16", add=True) for size in sizes),
        _case(4096, "bf16", add=False),
        _case(16384, "fp32", add=True),
    ]


def _case(size: int, dtype: str, *, add: bool) -> CompileCase:
    block = triton.next_power_of_2(size)
    pointers = dict.fromkeys(("x", "delta", "weight", "out"), f"*{dtype}")
    return CompileCase(
        name=f"{'add_' if add else ''}rms_norm N{size} {dtype}",
        kernel=_rms_norm_kernel,
        signature=pointers | {"x_stride": "i32", "delta_stride": "i32", "eps": "fp32"},
        constants={"N": size, "BLOCK_N": block, "ADD": add},
        num_warps=_num_warps(block),
        aligned=(*pointers, "x_stride", "delta_stride"),
    )
