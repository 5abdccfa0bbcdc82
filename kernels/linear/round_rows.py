"""Rounds each row of activations to int8 or fp8 by its own scale, and applies the scales to a product of integers.

Floor: 3 bytes a number for the first (read in bfloat16, once; written), 6 for the second: both bound by memory.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..compile_case import CompileCase

_LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
_WIDEST = 16384  # columns that a program holds at once


@triton.jit
def _round_rows(
    x,  # [T, N], rows x_stride apart
    codes,  # [T, N]
    scales,  # [T] float32
    N,
    x_stride,
    LARGEST: tl.constexpr,
    INTEGER: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WHOLE: tl.constexpr,  # a row fits: it is read once
):
    t = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK_N)
    x += t * x_stride
    codes += t * N
    most = tl.zeros([BLOCK_N], tl.float32)
    values = most
    for begin in range(0, N if not WHOLE else BLOCK_N, BLOCK_N):
        values = tl.load(x + begin + n, mask=begin + n < N, other=0.0).to(tl.float32)
        # As infinite, what is not a number makes the scale so, too; a maximum alone would leave no trace of it.
        most = tl.maximum(most, tl.where(values == values, tl.abs(values), float("inf")))
    scale = tl.maximum(tl.max(most, 0), 1e-10) / LARGEST
    tl.store(scales + t, scale)
    for begin in range(0, N if not WHOLE else BLOCK_N, BLOCK_N):
        if not WHOLE:
            values = tl.load(x + begin + n, mask=begin + n < N, other=0.0).to(tl.float32)
        # Division, not a product with the reciprocal: the row's largest number becomes LARGEST, to the bit.
        rounded = tl.clamp(tl.div_rn(values, tl.full([BLOCK_N], 1.0, tl.float32) * scale), -LARGEST, LARGEST)
        if INTEGER:
            # Adding and taking away 1.5 * 2^23 rounds to the nearest integer, halves to even.
            rounded = (rounded + 12582912.0) - 12582912.0
        tl.store(codes + begin + n, rounded.to(codes.dtype.element_ty), mask=begin + n < N)


@triton.jit
def _scale_sums(
    sums,  # [T, M] int32
    x_scales,  # [T]
    scales,  # [M]
    bias,  # [M], read with BIAS only
    out,  # [T, M]
    M,
    BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    t = tl.program_id(0).to(tl.int64)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = m < M
    total = tl.load(sums + t * M + m, mask=inside, other=0).to(tl.float32)
    total = total * (tl.load(x_scales + t) * tl.load(scales + m, mask=inside, other=0.0).to(tl.float32))
    if BIAS:
        total += tl.load(bias + m, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + t * M + m, total.to(out.dtype.element_ty), mask=inside)


def round_rows(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [T, N] of `dtype` (int8 or float8_e4m3fn) and scales float32 [T] with x = code * scale.

    x    [T, N] of a float dtype, neighbouring elements of a row adjacent in memory
    """
    num_rows, columns = x.shape
    assert x.stride(1) == 1
    codes = torch.empty((num_rows, columns), dtype=dtype, device=x.device)
    scales = torch.empty(num_rows, dtype=torch.float32, device=x.device)
    if num_rows:
        constants, num_warps = _constants(columns, dtype)
        _round_rows[(num_rows,)](x, codes, scales, columns, x.stride(0), **constants, num_warps=num_warps)
    return codes, scales


def scale_sums(
    sums: torch.Tensor,
    x_scales: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """sums * x_scales * scales + bias, rounded once to `dtype`.

    sums        [T, M] int32, contiguous
    x_scales    [T] float32
    scales      [1, M]
    """
    num_rows, width = sums.shape
    out = torch.empty((num_rows, width), dtype=dtype, device=sums.device)
    if num_rows:
        grid = (num_rows, triton.cdiv(width, 1024))
        _scale_sums[grid](sums, x_scales, scales, bias, out, width, BIAS=bias is not None, BLOCK_M=1024)
    return out


def _constants(columns: int, dtype: torch.dtype) -> tuple[dict[str, float | bool], int]:
    block = min(triton.next_power_of_2(columns), _WIDEST)
    constants = {
        "LARGEST": _LARGEST[dtype],
        "INTEGER": dtype == torch.int8,
        "BLOCK_N": block,
        "WHOLE": columns <= block,
    }
    return constants, min(max(block // 512, 1), 32)


def compile_cases() -> list[CompileCase]:
    """Both dtypes, rows that fit and rows that do not; and the scales of sums."""
    cases = []
    for name, dtype, code in (("int8", torch.int8, "i8"), ("fp8", torch.float8_e4m3fn, "fp8e4nv")):
        for columns in (4096, 12288, 28672):
            constants, num_warps = _constants(columns, dtype)
            signature = {"x": "*bf16", "codes": f"*{code}", "scales": "*fp32", "N": "i32", "x_stride": "i32"}
            label = f"round rows N{columns} {name}"
            cases.append(CompileCase(label, _round_rows, signature, constants, num_warps, aligned=tuple(signature)))
    pointers = {"sums": "*i32", "x_scales": "*fp32", "scales": "*bf16", "bias": "*bf16", "out": "*bf16"}
    constants = {"BIAS": True, "BLOCK_M": 1024}
    signature = pointers | {"M": "i32"}
    return [*cases, CompileCase("scale sums", _scale_sums, signature, constants, 4, aligned=tuple(signature))]
