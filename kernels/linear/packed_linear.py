"""Linear layer with a weight of packed integers of 4 or 8 bits, which are dequantised in registers.

Floor for [T, N] x [M, N]: max((M N bits / 8 + scales + 2 T (M + N)) bytes, 2 T M N FLOPs): a quarter or half of
bfloat16's time for few rows, and its own for hundreds. With 3.3 instructions a 4-bit code, an H200 issues about as fast
as its memory feeds it; Marlin (Frantar et al. 2024, arXiv 2408.11743) has fewer, in CUDA.

The weight is the product's first operand, which the tensor cores read from registers: nothing is written back to
shared memory. Codes are exact integers there; scales are applied to the sums of a group, in float32.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from ..compile_case import CompileCase
from ..processor import has_tensor_memory, is_roomy
from .formats import PackedWeight, block_columns
from .tiles import Tile, add_parts, choose_tile, cut_product, place, store_product

_NO_ZEROS, _CODES, _MINIMUMS = 0, 1, 2


_TILES = (Tile(16, 128, 4, 4), Tile(32, 128, 4, 4), Tile(64, 64, 4, 4), Tile(128, 128, 8, 3))
"""By rows of x up to which each is used; the last one for more, too. Groups of under 128 columns, whose sums are kept
apart and take registers, have none taller than 64."""

_TIGHT_TILES = (*_TILES[:2], Tile(64, 64, 8, 4))
"""In their place on GPUs with 99 KiB of shared memory, which the tallest exceeds, and where four warps would spill."""


def dequantise_from(group: int | None) -> int:
    """Rows from which the weight is written out once, in the dtype of `x`, for cuBLAS: unpacking it for each tile of
    rows costs more by then than writing it and reading it back."""
    return 257 if group is None or group >= 128 else 129


@triton.jit
def _numbers(words, shift, addend, dtype: tl.constexpr, BITS: tl.constexpr):
    """The two codes of `BITS` bits at `shift` of every word [R, W], less their zero, as numbers [R, 2 W].

    addend    4 bits: the bits of 128 + 16 - zero (bfloat16; float16: 1024) in both halves; 8 bits: those of 128 + 0
    """
    rows: tl.constexpr = words.shape[0]
    width: tl.constexpr = words.shape[1] * 2
    if BITS == 4:
        # A code added to the last bits of 128.0 is added to the number. The 16 keeps the sum above 128; subtracting all
        # of it leaves code - zero, exactly.
        offset: tl.constexpr = 144.0 if dtype == tl.bfloat16 else 1040.0
        pair = ((words >> shift) & 0x000F000F) + addend
        numbers = tl.reshape(tl.join(pair.to(tl.int16), (pair >> 16).to(tl.int16)), [rows, width])
        return numbers.to(dtype, bitcast=True) - tl.full([1, 1], offset, tl.float32).to(dtype)
    else:
        # bfloat16 has room for seven bits below 128.0: the eighth, the sign, counts as another 128, to be taken away.
        pair = words >> shift
        low, sign = (pair & 0x007F007F) + addend, (pair & 0x00800080) + addend
        numbers = tl.reshape(tl.join(low.to(tl.int16), (low >> 16).to(tl.int16)), [rows, width])
        signs = tl.reshape(tl.join(sign.to(tl.int16), (sign >> 16).to(tl.int16)), [rows, width])
        return numbers.to(dtype, bitcast=True) - signs.to(dtype, bitcast=True)


@triton.jit
def _scales_at(scales, zeros, at, ZEROS: tl.constexpr):
    """Scales and zeros [BLOCK_M] of a group; twice the scales where there are no zeros."""
    scale = tl.load(scales + at)
    zero = scale
    if ZEROS > 0:
        zero = tl.load(zeros + at)
    return scale, zero


@triton.jit(do_not_specialize=["T"])
def _linear(
    x,  # [T, N], rows x_stride apart
    words,  # [blocks, M, PARTS * WIDTH * BITS / 32]
    scales,  # [groups, M]
    zeros,  # [groups, M], read unless ZEROS is 0
    sums,  # [blocks * PER_BLOCK, sums_stride] float32: see _make_sums; read if ZEROS is 2
    bias,  # [M], read with BIAS only
    out,  # [T, M]
    parts,
    arrived,
    T,
    M,
    N,
    x_stride,
    sums_stride,
    blocks,
    blocks_each,
    groups,
    group_blocks,  # blocks that share a scale, where a group has that many
    BLOCK_T: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BITS: tl.constexpr,
    WIDTH: tl.constexpr,  # columns of a part of a block, which has 16 / BITS parts
    PER_BLOCK: tl.constexpr,  # groups in a block
    PER_ROW: tl.constexpr,  # one scale a row, and no minimums
    ZEROS: tl.constexpr,  # 0: none; 1: codes; 2: minimums
    EVEN_N: tl.constexpr,  # N is a multiple of a block's columns
    BIAS: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
):
    tile, split = tl.program_id(0), tl.program_id(1)
    t, m, row = place(M, BLOCK_T, BLOCK_M)
    n = tl.arange(0, WIDTH)
    has_row = (t < T)[None, :]
    first = split * blocks_each
    dtype: tl.constexpr = x.dtype.element_ty
    PARTS: tl.constexpr = 16 // BITS
    EACH: tl.constexpr = PARTS // PER_BLOCK  # parts of a group in a block
    WORDS: tl.constexpr = WIDTH // 2
    one: tl.constexpr = 0x43004300 if dtype == tl.bfloat16 else 0x64006400
    x_at = x + t.to(tl.int64)[None, :] * x_stride + n[:, None]
    words_at = words + (first.to(tl.int64) * M + row[:, None]) * WORDS + tl.arange(0, WORDS)[None, :]
    # Where a block has one scale a row, those of the next block are read while this one is computed: for the compiler
    # to do that, one or two bytes each are too few.
    AHEAD: tl.constexpr = PER_BLOCK == 1 and (ZEROS > 0 or not PER_ROW)
    next_scale, next_zero = _scales_at(scales, zeros, first // group_blocks * M + row, ZEROS)
    acc = tl.zeros([BLOCK_M, BLOCK_T], tl.float32)
    for block in tl.range(first, tl.minimum(first + blocks_each, blocks), num_stages=STAGES):
        packed = tl.load(words_at)
        if AHEAD:
            scale, zero = next_scale, next_zero
            group = tl.minimum((block + 1) // group_blocks, groups - 1)  # there is none after the last
            next_scale, next_zero = _scales_at(scales, zeros, group * M + row, ZEROS)
        for inner in tl.static_range(PER_BLOCK):
            if PER_BLOCK > 1:
                # The padding of the last block may have none: its sums are 0.
                group = tl.minimum(block * PER_BLOCK + inner, groups - 1)
                scale, zero = _scales_at(scales, zeros, group * M + row, ZEROS)
            if BITS == 8:
                addend = one
            elif ZEROS == 0:
                addend = one + 8 * 0x00010001
            elif ZEROS == 1:
                addend = (one + 0x00100010 - zero.to(tl.int32) * 0x00010001)[:, None]
            else:
                addend = one + 16 * 0x00010001
            total = acc if PER_ROW else tl.zeros([BLOCK_M, BLOCK_T], tl.float32)
            for part in tl.static_range(inner * EACH, (inner + 1) * EACH):
                begin = (block * PARTS + part) * WIDTH
                inside = has_row if EVEN_N else has_row & (begin + n < N)[:, None]
                values = tl.load(x_at + begin, mask=inside, other=0.0)
                total = tl.dot(_numbers(packed, BITS * part, addend, dtype, BITS), values, total)
            if PER_ROW:
                acc = total
            else:
                acc += total * scale.to(tl.float32)[:, None]
            if ZEROS == 2:
                total = tl.load(sums + (block * PER_BLOCK + inner) * sums_stride + t)[None, :]
                acc += zero.to(tl.float32)[:, None] * total
        words_at += tl.cast(M, tl.int64) * WORDS
    acc, complete = add_parts(
        acc, parts, arrived, T, tile, split, tl.num_programs(1), BLOCK_M=BLOCK_M, BLOCK_T=BLOCK_T, SPLIT=SPLIT
    )
    if complete:
        if PER_ROW:
            acc = acc * tl.load(scales + row).to(tl.float32)[:, None]
        store_product(acc, bias, out, t, m, row, T, M, BIAS)


@triton.jit(do_not_specialize=["T"])
def _sum_columns(
    x,  # [T, N], rows x_stride apart
    sums,  # [num_sums, sums_stride] float32
    T,
    N,
    num_sums,
    x_stride,
    sums_stride,
    WIDTH: tl.constexpr,
    HEIGHT: tl.constexpr,  # sums of a program
):
    t = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * HEIGHT + tl.arange(0, HEIGHT)
    n = unit[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    stop = tl.where(t < T, N, 0)
    values = tl.load(x + t * x_stride + n, mask=n < stop, other=0.0).to(tl.float32)
    tl.store(sums + unit * sums_stride + t, tl.sum(values, 1), mask=unit < num_sums)


@triton.jit
def _dequantise(
    words,  # [blocks, M, PARTS * WIDTH * BITS / 32]
    scales,  # [groups, M]
    zeros,  # [groups, M], read unless ZEROS is 0
    out,  # [M, N]
    M,
    N,
    group,
    BLOCK_M: tl.constexpr,
    BITS: tl.constexpr,
    WIDTH: tl.constexpr,
    ZEROS: tl.constexpr,
):
    PARTS: tl.constexpr = 16 // BITS
    WORDS: tl.constexpr = WIDTH // 2
    block = tl.program_id(1)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    has_row = m < M
    n = tl.arange(0, WIDTH)
    words_at = words + (block.to(tl.int64) * M + m[:, None]) * WORDS + tl.arange(0, WORDS)[None, :]
    packed = tl.load(words_at, mask=has_row[:, None], other=0)
    for part in tl.static_range(PARTS):
        begin = (block * PARTS + part) * WIDTH
        if BITS == 4:
            low, high = (packed >> 4 * part) & 15, (packed >> (4 * part + 16)) & 15
        else:
            low, high = packed << (24 - 8 * part) >> 24, packed << (8 - 8 * part) >> 24
        values = tl.reshape(tl.join(low, high), [BLOCK_M, WIDTH]).to(tl.float32)
        at = tl.minimum(begin, N - 1) // group * M + m
        scale = tl.load(scales + at, mask=has_row, other=0.0).to(tl.float32)[:, None]
        if ZEROS == 0:
            values = (values - 8.0 if BITS == 4 else values) * scale
        else:
            zero = tl.load(zeros + at, mask=has_row, other=0).to(tl.float32)[:, None]
            values = (values - zero) * scale if ZEROS == 1 else values * scale + zero
        out_at = out + m.to(tl.int64)[:, None] * N + begin + n[None, :]
        tl.store(out_at, values.to(out.dtype.element_ty), mask=has_row[:, None] & (begin + n < N)[None, :])


def linear_packed(
    x: torch.Tensor,
    weight: PackedWeight,
    bias: torch.Tensor | None,
    arrived: torch.Tensor,
    *,
    invariant: bool = False,
) -> torch.Tensor:
    """x W^T + b.

    x           [T, N] bfloat16 or float16, neighbouring elements of a row adjacent in memory
    bias        [M], of the dtype of `x`, or None
    arrived     tiles.make_counters(M); two products that run at once must not share it
    invariant   a row of the result depends on that row of `x` and the weight alone, to the bit, whatever T is; without,
                on which of _TILES serves T, too, and from `dequantise_from` rows on cuBLAS's choice
    returns     [T, M] of the dtype of `x`; sums are float32, and rounded once
    """
    (num_rows, columns), width = x.shape, weight.shape[0]
    assert columns == weight.num_columns and x.stride(1) == 1 and x.dtype in (torch.bfloat16, torch.float16)
    if num_rows >= dequantise_from(weight.group) and not invariant:
        return F.linear(x, dequantise_packed(weight, x.dtype), bias)
    out = torch.empty((num_rows, width), dtype=x.dtype, device=x.device)
    if num_rows == 0:
        return out
    tile = _choose(None if invariant else num_rows, weight.group, x.device)
    blocks = weight.words.shape[0]
    cut = cut_product(x, width, blocks, tile, arrived, dtype=torch.float32, splits=not invariant)
    constants = _constants(tile, weight.bits, weight.group, _zeros_kind(weight), columns)
    sums_stride = triton.cdiv(num_rows, tile.t) * tile.t
    sums = _make_sums(x, weight, sums_stride) if constants["ZEROS"] == _MINIMUMS else None
    _linear[cut.grid](
        x,
        weight.words,
        weight.scales,
        weight.zeros,
        sums,
        bias,
        out,
        cut.parts,
        arrived,
        num_rows,
        width,
        columns,
        x.stride(0),
        sums_stride,
        blocks,
        cut.each,
        weight.scales.shape[0],
        blocks if weight.group is None else max(weight.group // block_columns(weight.bits, weight.group), 1),
        **constants,
        BIAS=bias is not None,
        SPLIT=cut.splits,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out


def dequantise_packed(weight: PackedWeight, dtype: torch.dtype) -> torch.Tensor:
    """The numbers that a weight stands for, rounded once to `dtype`: [M, N]."""
    rows, columns = weight.shape
    out = torch.empty((rows, columns), dtype=dtype, device=weight.words.device)
    _dequantise[(triton.cdiv(rows, 64), weight.words.shape[0])](
        weight.words,
        weight.scales,
        weight.zeros,
        out,
        rows,
        columns,
        columns if weight.group is None else weight.group,
        BLOCK_M=64,
        BITS=weight.bits,
        WIDTH=block_columns(weight.bits, weight.group) * weight.bits // 16,
        ZEROS=_zeros_kind(weight),
    )
    return out


def _make_sums(x: torch.Tensor, weight: PackedWeight, stride: int) -> torch.Tensor:
    """Returns the factors of minimums: sums of `x` over the columns that a group has in a block, float32 [., stride];
    0 for rows past those of `x`."""
    (num_rows, columns), height = x.shape, 32
    block = block_columns(weight.bits, weight.group)
    width = block if weight.group is None else min(weight.group, block)
    # Of whole blocks, so that the columns that pad the last one have their sums, too: 0.
    num_sums = triton.cdiv(columns, block) * (block // width)
    sums = torch.empty((num_sums, stride), dtype=torch.float32, device=x.device)
    _sum_columns[(stride, triton.cdiv(num_sums, height))](
        x, sums, num_rows, columns, num_sums, x.stride(0), stride, WIDTH=width, HEIGHT=height
    )
    return sums


def _choose(num_rows: int | None, group: int | None, device: torch.device) -> Tile:
    """Returns the tile for so many rows; None: for any number of them."""
    tiles = _TILES if is_roomy(device) else _TIGHT_TILES
    if num_rows is None:
        return tiles[2]
    few = (group is not None and group < 128) or has_tensor_memory(device)
    return choose_tile(tiles[:3] if few else tiles, num_rows)


def _zeros_kind(weight: PackedWeight) -> int:
    if weight.zeros is None:
        return _NO_ZEROS
    return _MINIMUMS if weight.zeros.dtype.is_floating_point else _CODES


def _constants(tile: Tile, bits: int, group: int | None, zeros: int, columns: int) -> dict[str, int | bool]:
    block = block_columns(bits, group)
    return {
        "BLOCK_T": tile.t,
        "BLOCK_M": tile.m,
        "BITS": bits,
        "WIDTH": block * bits // 16,
        "PER_BLOCK": 1 if group is None else max(block // group, 1),
        "PER_ROW": group is None and zeros != _MINIMUMS,
        "ZEROS": zeros,
        "EVEN_N": columns % block == 0,
        "STAGES": tile.num_stages,
    }


def compile_cases() -> list[CompileCase]:
    """Every tile with 4 bits in groups of 128 and with 8 bits by rows; what else files have, once or twice."""
    small, _, medium, _, tight = *_TILES, _TIGHT_TILES[2]
    tiles = (*_TILES, tight)
    cases = [_case(f"int4 g128 codes T{tile.t}", tile, 4, 128, _CODES) for tile in tiles]
    cases += [_case(f"int8 rows T{tile.t}", tile, 8, None, _NO_ZEROS, scale="fp32") for tile in tiles]
    cases += [
        _case("int4 g32 codes T32", _TILES[1], 4, 32, _CODES),
        _case("int4 g32 minimums T16", small, 4, 32, _MINIMUMS, scale="fp32"),
        *(_case("int4 g32 minimums T64", tile, 4, 32, _MINIMUMS, scale="fp32") for tile in (medium, tight)),
        _case("int4 g64 T16 fp16 ragged", small, 4, 64, _NO_ZEROS, dtype="fp16", columns=576),
        _case("int8 g32 T16", small, 8, 32, _NO_ZEROS),
        *(_case("int8 g32 minimums T64", tile, 8, 32, _MINIMUMS, scale="fp32") for tile in (medium, tight)),
        *(_case("int8 g16 T64", tile, 8, 16, _NO_ZEROS, scale="fp32") for tile in (medium, tight)),
    ]
    signature = {"words": "*i32", "scales": "*fp16", "zeros": "*u8", "out": "*bf16"}
    signature |= dict.fromkeys(("M", "N", "group"), "i32")
    constants = {"BLOCK_M": 64, "BITS": 4, "WIDTH": 32, "ZEROS": _CODES}
    dequantise = CompileCase("dequantise int4", _dequantise, signature, constants, 4, aligned=tuple(signature))
    pointers = {"x": "*bf16", "sums": "*fp32"}
    numbers = dict.fromkeys(("T", "N", "num_sums", "x_stride", "sums_stride"), "i32")
    sizes = {"WIDTH": 32, "HEIGHT": 32}
    aligned = (*pointers, "N", "x_stride", "sums_stride")
    return [*cases, dequantise, CompileCase("sum columns", _sum_columns, pointers | numbers, sizes, 4, aligned=aligned)]


def _case(
    name: str,
    tile: Tile,
    bits: int,
    group: int | None,
    zeros: int,
    *,
    dtype: str = "bf16",
    scale: str = "fp16",
    columns: int = 4096,
) -> CompileCase:
    pointers = {
        "x": f"*{dtype}",
        "words": "*i32",
        "scales": f"*{scale}",
        "bias": f"*{dtype}",
        "out": f"*{dtype}",
        "zeros": "*u8" if zeros == _CODES else f"*{scale}",
        "sums": "*fp32",
        "parts": "*fp32",
        "arrived": "*i32",
    }
    numbers = ("T", "M", "N", "x_stride", "sums_stride", "blocks", "blocks_each", "groups", "group_blocks")
    medium, tall, tight = *_TILES[2:], _TIGHT_TILES[2]
    return CompileCase(
        name=f"{name} tight" if tile == tight else name,
        kernel=_linear,
        signature=pointers | dict.fromkeys(numbers, "i32"),
        constants=_constants(tile, bits, group, zeros, columns) | {"BIAS": False, "SPLIT": True},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        aligned=(*pointers, "M", "N", "x_stride", "sums_stride"),
        roomy={medium: True, tall: True, tight: False}.get(tile),
        before=100 if tile == tall else 1000,
    )
