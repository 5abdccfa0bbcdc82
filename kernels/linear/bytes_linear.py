"""Linear layer with a weight of one byte per number, in rows: int8 times `x` rounded to int8, or fp8 times `x`.

Floor for [T, N] x [M, N]: max((M N + 2 T (M + N)) bytes, 2 T M N FLOPs): half of bfloat16's time for few rows. The
product of integers is exact: a row's result depends on that row alone, however many there are, and FLOPs bound it at
half of bfloat16's time. Dettmers et al. 2022, LLM.int8() (arXiv 2208.07339), section 2; the blocks of 128 by 128:
DeepSeek-V3 (arXiv 2412.19437), section 3.3.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from ..compile_case import CompileCase
from .formats import ByteWeight
from .round_rows import round_rows, scale_sums
from .tiles import Tile, add_parts, choose_tile, cut_product, place, store_product

DEQUANTISE_FROM = 257
"""Rows from which a weight of fp8 is written out once, in the dtype of `x`, for cuBLAS."""

INT_MM_FROM = 65
"""Rows from which a product of integers is torch._int_mm's, which needs at least 17, and M and N divisible by 8."""


_TILES = (Tile(16, 128, 4, 3), Tile(32, 64, 4, 4), Tile(64, 64, 4, 4))
"""By rows of x up to which each is used; the last one for more, too."""

_INVARIANT = _TILES[-1]
_WRITTEN = 128  # columns that a program of `_dequantise` writes


@triton.jit(do_not_specialize=["T"])
def _linear_bytes(
    x,  # [T, N], rows x_stride apart
    codes,  # [M, N]
    scales,  # [groups, M]
    x_scales,  # [T], read with INTEGER only
    bias,  # [M], read with BIAS only
    out,  # [T, M]
    parts,
    arrived,
    T,
    M,
    N,
    x_stride,
    blocks,
    blocks_each,
    group_blocks,  # blocks of BLOCK_N columns that share a scale
    BLOCK_T: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    INTEGER: tl.constexpr,  # x is int8, and there is one scale a row
    EVEN_N: tl.constexpr,  # N is a multiple of BLOCK_N
    BIAS: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
):
    tile, split = tl.program_id(0), tl.program_id(1)
    t, m, row = place(M, BLOCK_T, BLOCK_M)
    n = tl.arange(0, BLOCK_N)
    has_row = (t < T)[None, :]
    first = split * blocks_each
    x_at = x + t.to(tl.int64)[None, :] * x_stride + n[:, None]
    codes_at = codes + row.to(tl.int64)[:, None] * N + n[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_T], tl.int32 if INTEGER else tl.float32)
    for block in tl.range(first, tl.minimum(first + blocks_each, blocks), num_stages=STAGES):
        begin = block * BLOCK_N
        if EVEN_N:
            values = tl.load(x_at + begin, mask=has_row, other=0)
            numbers = tl.load(codes_at + begin)
        else:
            values = tl.load(x_at + begin, mask=has_row & (begin + n < N)[:, None], other=0)
            numbers = tl.load(codes_at + begin, mask=(begin + n < N)[None, :], other=0 if INTEGER else 0.0)
        if INTEGER:
            acc = tl.dot(numbers, values, acc, out_dtype=tl.int32)
        else:
            scale = tl.load(scales + block // group_blocks * M + row).to(tl.float32)
            if values.dtype == tl.bfloat16:
                # 8-bit floats become float16 first, whatever is asked for. What makes bfloat16 of that outright is done
                # by the unit of few lanes that has the exponentials, too; by way of float32 the others do it.
                numbers = numbers.to(tl.float32)
            acc += tl.dot(numbers.to(values.dtype), values) * scale[:, None]
    acc, complete = add_parts(
        acc, parts, arrived, T, tile, split, tl.num_programs(1), BLOCK_M=BLOCK_M, BLOCK_T=BLOCK_T, SPLIT=SPLIT
    )
    if complete:
        total = acc.to(tl.float32)
        if INTEGER:
            x_scale = tl.load(x_scales + t, mask=t < T, other=0.0)
            total = total * (x_scale[None, :] * tl.load(scales + row).to(tl.float32)[:, None])
        store_product(total, bias, out, t, m, row, T, M, BIAS)


@triton.jit
def _dequantise(
    codes,  # [M, N]
    scales,  # [groups, M]
    out,  # [M, N]
    M,
    N,
    group,  # columns that share a scale: a multiple of BLOCK_N, or N
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    begin = tl.program_id(1) * BLOCK_N
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = begin + tl.arange(0, BLOCK_N)
    inside = (m < M)[:, None] & (n < N)[None, :]
    at = m.to(tl.int64)[:, None] * N + n[None, :]
    scale = tl.load(scales + begin // group * M + m, mask=m < M, other=0.0).to(tl.float32)
    values = tl.load(codes + at, mask=inside, other=0.0).to(tl.float32) * scale[:, None]
    tl.store(out + at, values.to(out.dtype.element_ty), mask=inside)


def linear_bytes(
    x: torch.Tensor,
    weight: ByteWeight,
    bias: torch.Tensor | None,
    arrived: torch.Tensor,
    *,
    invariant: bool = False,
) -> torch.Tensor:
    """x W^T + b, the weight's codes made numbers of the dtype of `x` on their way. Needs a GPU that knows fp8.

    x           [T, N] bfloat16 or float16, neighbouring elements of a row adjacent in memory
    weight      float8_e4m3fn
    bias        [M], of the dtype of `x`, or None
    arrived     tiles.make_counters(M); two products that run at once must not share it
    invariant   as in packed_linear.linear_packed
    returns     [T, M] of the dtype of `x`; sums are float32, and rounded once
    """
    num_rows = x.shape[0]
    assert x.dtype in (torch.bfloat16, torch.float16) and weight.codes.dtype == torch.float8_e4m3fn
    if num_rows >= DEQUANTISE_FROM and not invariant:
        return F.linear(x, dequantise_bytes(weight, x.dtype), bias)
    tile = _INVARIANT if invariant else choose_tile(_TILES, num_rows)
    return _launch(x, weight, None, bias, arrived, tile, x.dtype, splits=not invariant)


def linear_rows_int8(
    x: torch.Tensor, weight: ByteWeight, bias: torch.Tensor | None, arrived: torch.Tensor
) -> torch.Tensor:
    """x W^T + b with each row of `x` rounded to int8 by its own scale. Arguments and result as of linear_bytes.

    The weight has int8 codes and one scale a row. The sums are exact integers, so that a row of the result depends on
    that row of `x` and the weight alone, to the bit, whatever T is.
    """
    num_rows, (width, columns) = x.shape[0], weight.shape
    assert weight.codes.dtype == torch.int8 and weight.group is None
    codes, scales = round_rows(x, torch.int8)
    if num_rows >= INT_MM_FROM and x.device.type == "cuda" and width % 8 == 0 and columns % 8 == 0:
        return scale_sums(torch._int_mm(codes, weight.codes.t()), scales, weight.scales, bias, x.dtype)
    return _launch(codes, weight, scales, bias, arrived, choose_tile(_TILES, num_rows), x.dtype)


def linear_rows_fp8(x: torch.Tensor, weight: ByteWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """x W^T + b of fp8 by fp8, each row of `x` rounded by its own scale: torch._scaled_mm. [T, N] -> [T, M].

    The weight has one float32 scale a row, and M and N are divisible by 16. Sums are kept in the tensor cores' own
    format, which is faster and whose error is far below that of fp8's four significant bits.
    """
    assert weight.codes.dtype == torch.float8_e4m3fn and weight.group is None
    if x.shape[0] == 0:
        return x.new_empty((0, weight.shape[0]))
    codes, scales = round_rows(x, torch.float8_e4m3fn)
    out = torch._scaled_mm(
        codes,
        weight.codes.t(),
        scale_a=scales[:, None],
        scale_b=weight.scales,
        out_dtype=torch.bfloat16,  # the one that products by rows have
        use_fast_accum=True,
    )
    if bias is not None:
        out += bias
    return out.to(x.dtype)


def _launch(
    x: torch.Tensor,
    weight: ByteWeight,
    x_scales: torch.Tensor | None,
    bias: torch.Tensor | None,
    arrived: torch.Tensor,
    tile: Tile,
    dtype: torch.dtype,
    *,
    splits: bool = True,
) -> torch.Tensor:
    (num_rows, columns), (width, _) = x.shape, weight.shape
    assert columns == weight.shape[1] and x.stride(1) == 1
    out = torch.empty((num_rows, width), dtype=dtype, device=x.device)
    if num_rows == 0:
        return out
    blocks, kind = triton.cdiv(columns, tile.n), torch.float32 if x_scales is None else torch.int32
    cut = cut_product(x, width, blocks, tile, arrived, dtype=kind, splits=splits)
    _linear_bytes[cut.grid](
        x,
        weight.codes,
        weight.scales,
        x_scales,
        bias,
        out,
        cut.parts,
        arrived,
        num_rows,
        width,
        columns,
        x.stride(0),
        blocks,
        cut.each,
        blocks if weight.group is None else weight.group // tile.n,
        **_constants(tile, columns, integer=x_scales is not None),
        BIAS=bias is not None,
        SPLIT=cut.splits,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out


def dequantise_bytes(weight: ByteWeight, dtype: torch.dtype) -> torch.Tensor:
    """The numbers that a weight stands for, rounded once to `dtype`: [M, N]."""
    rows, columns = weight.shape
    out = torch.empty((rows, columns), dtype=dtype, device=weight.codes.device)
    grid = (triton.cdiv(rows, 64), triton.cdiv(columns, _WRITTEN))
    group = columns if weight.group is None else weight.group
    _dequantise[grid](weight.codes, weight.scales, out, rows, columns, group, BLOCK_M=64, BLOCK_N=_WRITTEN)
    return out


def _constants(tile: Tile, columns: int, *, integer: bool) -> dict[str, int | bool]:
    return {
        "BLOCK_T": tile.t,
        "BLOCK_M": tile.m,
        "BLOCK_N": tile.n,
        "INTEGER": integer,
        "EVEN_N": columns % tile.n == 0,
        "STAGES": tile.num_stages,
    }


def compile_cases() -> list[CompileCase]:
    """Every tile for integers and for fp8, one of each with ragged sums; and the writing out of fp8."""
    cases = [_case(f"int8 rows T{tile.t}", tile, "i8") for tile in _TILES]
    cases += [_case(f"fp8 blocks T{tile.t}", tile, "fp8e4nv") for tile in _TILES]
    cases += [
        _case("int8 rows T16 ragged", _TILES[0], "i8", columns=576),
        _case("fp8 blocks T16 ragged", _TILES[0], "fp8e4nv", columns=576),
    ]
    signature = {"codes": "*fp8e4nv", "scales": "*fp32", "out": "*bf16"} | dict.fromkeys(("M", "N", "group"), "i32")
    constants = {"BLOCK_M": 64, "BLOCK_N": _WRITTEN}
    return [*cases, CompileCase("dequantise fp8", _dequantise, signature, constants, 4, aligned=tuple(signature))]


def _case(name: str, tile: Tile, codes: str, *, columns: int = 4096) -> CompileCase:
    integer = codes == "i8"
    pointers = {
        "x": "*i8" if integer else "*bf16",
        "codes": f"*{codes}",
        "scales": "*fp32",
        "x_scales": "*fp32",
        "bias": "*bf16",
        "out": "*bf16",
        "parts": "*i32" if integer else "*fp32",
        "arrived": "*i32",
    }
    return CompileCase(
        name=name,
        kernel=_linear_bytes,
        signature=pointers | dict.fromkeys(("T", "M", "N", "x_stride", "blocks", "blocks_each", "group_blocks"), "i32"),
        constants=_constants(tile, columns, integer=integer) | {"BIAS": False, "SPLIT": True},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        aligned=(*pointers, "M", "N", "x_stride"),
    )
