"""Linear layer over bfloat16 or float16 for 1 to 32 rows, those of a decode step, where cuBLAS is bound by latency.

Floor for [T, N] x [M, N], all bfloat16 or float16: 2 (M N + T (M + N)) bytes. For a weight of a few megabytes that is
one or two microseconds, about the time in which a program starts and receives its first numbers. So nearly all loads
are in flight at once: programs for every multiprocessor in one round, each with few blocks.

One or two rows, and up to 4 by a weight of few rows, are multiplied without tensor cores, which would compute 8 or 16;
each program adds whole sums, so that none waits for another. More rows are a product whose first operand is the weight;
programs share sums, as in `tiles`. With GATED, the weight's halves are a gate's and an input's rows, and silu(gate) *
up of the rounded results is stored.

Where a row of x fits a program's registers, each program may compute the residual's sum and its RMSNorm anew while the
weight is being loaded: one launch less, and the same rounded numbers as from `decoder.norm`.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..compile_case import CompileCase
from .tiles import Tile, add_parts, cut_blocks, make_counters, place, store_product


@dataclass(frozen=True)
class Config:
    """`tile`; and programs that share a sum of tensor cores, or None for sums without tensor cores."""

    tile: Tile
    splits: int | None = None


def _fma(t: int, m: int, n: int, num_warps: int = 4, num_stages: int = 1) -> Config:
    return Config(Tile(t, m, num_warps, num_stages, n))


def _dot(t: int, m: int, n: int, splits: int, num_warps: int = 4, num_stages: int = 4) -> Config:
    return Config(Tile(t, m, num_warps, num_stages, n), splits)


_ROWS = (1, 2, 4, 8, 16, 32)
_TABLE: Mapping[tuple[int, str], Config] = {
    (1, "narrow"): _fma(1, 4, 512, 4, 3),
    (2, "narrow"): _fma(2, 4, 512, 4, 3),
    (4, "narrow"): _fma(4, 4, 512, 4, 3),
    (8, "narrow"): _dot(16, 32, 128, 4),
    (16, "narrow"): _dot(16, 32, 128, 4),
    (32, "narrow"): _dot(32, 32, 128, 4),
    (1, "small"): _fma(1, 8, 512),
    (2, "small"): _fma(2, 4, 256, 2),
    (4, "small"): _dot(8, 32, 128, 1),
    (8, "small"): _dot(8, 32, 128, 1),
    (16, "small"): _dot(16, 32, 128, 1),
    (32, "small"): _dot(32, 64, 128, 1),
    (1, "deep"): _fma(1, 4, 512, 4, 3),
    (2, "deep"): _fma(2, 4, 512, 4, 3),
    (4, "deep"): _dot(8, 64, 128, 4),
    (8, "deep"): _dot(8, 64, 128, 4),
    (16, "deep"): _dot(16, 64, 128, 2),
    (32, "deep"): _dot(32, 64, 128, 2),
    (1, "large"): _fma(1, 4, 512, 4, 3),
    (4, "large"): _dot(8, 64, 128, 1),
    (8, "large"): _dot(8, 64, 128, 1),
    (16, "large"): _dot(16, 64, 128, 1),
    (32, "large"): _dot(32, 64, 128, 1),
    (4, "head"): _dot(8, 64, 128, 1),
    (8, "head"): _dot(8, 64, 128, 1),
    (16, "head"): _dot(16, 64, 128, 1),
    (32, "head"): _dot(32, 64, 64, 1, 4, 5),
}
"""By the rows of x up to which each is used, and the class of the weight. None: cuBLAS is faster.

Measured on an H200 with the weights of Qwen3-0.6B and 8B, in bfloat16, against cuBLAS of CUDA 13: one row by an out
projection of the small model takes 3.6 us instead of 12.8, by its down projection 4.3 instead of 7.6; one to 32 rows by
those of the large model take 2 to 4 us less, of 13 and 30. Where a product only equals cuBLAS, it is here for what is
computed with it."""

_NORMED: Mapping[tuple[int, int], Tile] = {
    (1, 1024): Tile(1, 4, 4, 1, 1024),
    (2, 1024): Tile(2, 4, 4, 1, 1024),
}
"""By rows of x, and by columns, up to which each is used where the norm is computed, too. A step of Qwen3-0.6B takes
0.97 ms with one row and 1.04 with two, instead of 1.04 and 1.10; with four it would take 1.31 instead of 1.10."""

_LOWEST = min((config.tile.m for config in _TABLE.values() if config.splits is not None), default=64)


def classify(width: int, columns: int) -> str:
    """Class of a weight [width, columns] in the table.

    narrow   too few rows for a tile of them on each multiprocessor: out and down of a small model
    small    16 MiB at most: the other layers of a small model
    deep     out and down of a larger one: tiles for half the multiprocessors, with long sums
    large    its other layers
    head     a row for each token of a vocabulary
    """
    if width >= 1 << 16:
        return "head"
    if width < 3072:
        return "narrow"
    if width * columns <= 1 << 23:
        return "small"
    return "deep" if width <= 5120 else "large"


def choose(num_rows: int, width: int, columns: int, dtype: torch.dtype, device: torch.device) -> Config | None:
    """Returns how [num_rows, columns] x [width, columns] is computed, or None where cuBLAS serves."""
    if not 0 < num_rows <= _ROWS[-1] or dtype not in (torch.bfloat16, torch.float16) or device.type != "cuda":
        return None
    bucket = next(rows for rows in _ROWS if num_rows <= rows)
    return _TABLE.get((bucket, classify(width, columns)))


def choose_normed(num_rows: int, width: int, columns: int, dtype: torch.dtype, device: torch.device) -> Config | None:
    """Returns how the same product is computed of the RMSNorm of a sum; None where the norm is a launch of its own."""
    if choose(num_rows, width, columns, dtype, device) is None or classify(width, columns) in ("deep", "large"):
        return None
    fitting = [key for key in _NORMED if num_rows <= key[0] and columns <= key[1]]
    return Config(_NORMED[min(fitting)]) if fitting else None


class FewRows:
    """The products of a weight [M, N], contiguous, with few rows: None where cuBLAS is to compute them.

    Two that run at once must not be of one object: it owns the counters.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight
        self._arrived = make_counters(len(weight), weight.device, tile_rows=_LOWEST)

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor | None:
        """x W^T + b. x [T, N], bias [M] or None; returns [T, M]."""
        return self._compute(x, bias, gated=False)

    def multiply_gated(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor | None:
        """silu(gate) * up, where x W^T + b are the gate's half, rounded, and then the up half; returns [T, M / 2]."""
        return self._compute(x, bias, gated=True)

    def multiply_normed(
        self,
        hidden: torch.Tensor,
        delta: torch.Tensor,
        norm: torch.Tensor,
        eps: float,
        bias: torch.Tensor | None,
        *,
        gated: bool,
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """hidden + delta [T, N], rounded; and either product of that sum's RMSNorm, whose weight is `norm` [N]."""
        width, columns = self._weight.shape
        even = hidden.is_contiguous() and delta.is_contiguous()
        config = choose_normed(len(hidden), width, columns, hidden.dtype, hidden.device) if even else None
        return (
            None
            if config is None
            else multiply_normed(hidden, delta, norm, eps, self._weight, bias, config.tile, gated=gated)
        )

    def _compute(self, x: torch.Tensor, bias: torch.Tensor | None, *, gated: bool) -> torch.Tensor | None:
        width, columns = self._weight.shape
        config = choose(len(x), width, columns, x.dtype, x.device) if x.stride(1) == 1 else None
        return None if config is None else multiply(x, self._weight, bias, self._arrived, config, gated=gated)


@triton.jit
def _place(M, BLOCK_T: tl.constexpr, BLOCK_M: tl.constexpr, GATED: tl.constexpr):
    """Places as `place`. With GATED every other row is of the weight's second half: a program has both of a result."""
    t, m, row = place(M, BLOCK_T, BLOCK_M)
    if GATED:
        row = tl.minimum(m // 2, M // 2 - 1) + m % 2 * (M // 2)
    return t, m, row


@triton.jit
def _store(total, bias, out, t, row, m, T, M, BLOCK_M: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr):
    """Stores sums [BLOCK_M, BLOCK_T] plus the bias; with GATED, silu of even rows times odd ones, in [T, M / 2]."""
    if GATED:
        dtype: tl.constexpr = out.dtype.element_ty
        if BIAS:
            total += tl.load(bias + row).to(tl.float32)[:, None]
        pairs = tl.reshape(total.to(dtype).to(tl.float32), [BLOCK_M // 2, 2, total.shape[1]])
        gate, up = tl.split(tl.permute(pairs, [0, 2, 1]))
        half = tl.program_id(0) * (BLOCK_M // 2) + tl.arange(0, BLOCK_M // 2)
        store_product(gate / (1.0 + tl.exp(-gate)) * up, bias, out, t, half, half, T, M // 2, False)
    else:
        store_product(total, bias, out, t, m, row, T, M, BIAS)


@triton.jit(do_not_specialize=["T"])
def _linear_fma(
    x,  # [T, N], rows x_stride apart
    weight,  # [M, N]
    bias,  # [M], read with BIAS only
    out,  # [T, M], or [T, M / 2] with GATED
    T,
    M,
    N,
    x_stride,
    BLOCK_T: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    EVEN_N: tl.constexpr,  # N is a multiple of BLOCK_N
    ONE_BLOCK: tl.constexpr,  # N is at most BLOCK_N
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
    STAGES: tl.constexpr,
):
    t, m, row = _place(M, BLOCK_T, BLOCK_M, GATED)
    n = tl.arange(0, BLOCK_N)
    # Past the last row of x that row is read again, as the weight's is.
    x_at = x + tl.minimum(t, T - 1).to(tl.int64)[:, None] * x_stride + n[None, :]
    weight_at = weight + row.to(tl.int64)[:, None] * N + n[None, :]
    if ONE_BLOCK:  # without a loop there are no sums to keep, and half the registers do
        inside = (n < N)[None, :]
        numbers = tl.load(weight_at) if EVEN_N else tl.load(weight_at, mask=inside, other=0.0)
        values = tl.load(x_at) if EVEN_N else tl.load(x_at, mask=inside, other=0.0)
        acc = numbers.to(tl.float32)[:, None, :] * values.to(tl.float32)[None, :, :]
    else:
        acc = tl.zeros([BLOCK_M, BLOCK_T, BLOCK_N], tl.float32)
        for begin in tl.range(0, N, BLOCK_N, num_stages=STAGES):
            inside = (begin + n < N)[None, :]
            numbers = tl.load(weight_at + begin) if EVEN_N else tl.load(weight_at + begin, mask=inside, other=0.0)
            values = tl.load(x_at + begin) if EVEN_N else tl.load(x_at + begin, mask=inside, other=0.0)
            acc += numbers.to(tl.float32)[:, None, :] * values.to(tl.float32)[None, :, :]
    _store(tl.sum(acc, 2), bias, out, t, row, m, T, M, BLOCK_M, GATED, BIAS)


@triton.jit(do_not_specialize=["T"])
def _linear_normed(
    hidden,  # [T, N]
    delta,  # [T, N]
    norm,  # [N]
    total,  # [T, N] hidden + delta
    weight,  # [M, N]
    bias,  # [M], read with BIAS only
    out,  # [T, M], or [T, M / 2] with GATED
    T,
    M,
    N,
    eps,
    BLOCK_T: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,  # at least N
    EVEN_N: tl.constexpr,  # it is N
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
):
    t, m, row = _place(M, BLOCK_T, BLOCK_M, GATED)
    n = tl.arange(0, BLOCK_N)
    at = tl.minimum(t, T - 1)[:, None] * N + n[None, :]
    weight_at = weight + row.to(tl.int64)[:, None] * N + n[None, :]
    if EVEN_N:
        numbers = tl.load(weight_at)
        value = tl.load(hidden + at).to(tl.float32) + tl.load(delta + at).to(tl.float32)
        factor = tl.load(norm + n)
    else:
        inside = (n < N)[None, :]
        numbers = tl.load(weight_at, mask=inside, other=0.0)
        value = tl.load(hidden + at, mask=inside, other=0.0).to(tl.float32)
        value += tl.load(delta + at, mask=inside, other=0.0).to(tl.float32)
        factor = tl.load(norm + n, mask=n < N, other=0.0)
    dtype: tl.constexpr = hidden.dtype.element_ty
    rounded = value.to(dtype)
    if tl.program_id(0) == 0:
        tl.store(total + at, rounded, mask=(t < T)[:, None] & (n < N)[None, :])
    wide = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 1) / N + eps)
    normed = (wide * scale[:, None] * factor.to(tl.float32)[None, :]).to(dtype).to(tl.float32)
    sums = tl.sum(numbers.to(tl.float32)[:, None, :] * normed[None, :, :], 2)
    _store(sums, bias, out, t, row, m, T, M, BLOCK_M, GATED, BIAS)


@triton.jit(do_not_specialize=["T", "blocks", "blocks_each"])
def _linear_dot(
    x,  # [T, N], rows x_stride apart
    weight,  # [M, N]
    bias,  # [M], read with BIAS only
    out,  # [T, M], or [T, M / 2] with GATED
    parts,
    arrived,
    T,
    M,
    N,
    x_stride,
    blocks,
    blocks_each,
    BLOCK_T: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    EVEN_N: tl.constexpr,  # N is a multiple of BLOCK_N
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
):
    tile, split = tl.program_id(0), tl.program_id(1)
    t, m, row = _place(M, BLOCK_T, BLOCK_M, GATED)
    n = tl.arange(0, BLOCK_N)
    has_row = (t < T)[None, :]
    x_at = x + t.to(tl.int64)[None, :] * x_stride + n[:, None]
    weight_at = weight + row.to(tl.int64)[:, None] * N + n[None, :]
    first = split * blocks_each
    acc = tl.zeros([BLOCK_M, BLOCK_T], tl.float32)
    for block in tl.range(first, tl.minimum(first + blocks_each, blocks), num_stages=STAGES):
        begin = block * BLOCK_N
        if EVEN_N:
            numbers = tl.load(weight_at + begin)
            values = tl.load(x_at + begin, mask=has_row, other=0.0)
        else:
            inside = begin + n < N
            numbers = tl.load(weight_at + begin, mask=inside[None, :], other=0.0)
            values = tl.load(x_at + begin, mask=has_row & inside[:, None], other=0.0)
        acc = tl.dot(numbers, values, acc)
    acc, complete = add_parts(
        acc, parts, arrived, T, tile, split, tl.num_programs(1), BLOCK_M=BLOCK_M, BLOCK_T=BLOCK_T, SPLIT=SPLIT
    )
    if complete:
        _store(acc, bias, out, t, row, m, T, M, BLOCK_M, GATED, BIAS)


def multiply(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    arrived: torch.Tensor,
    config: Config,
    *,
    gated: bool = False,
) -> torch.Tensor:
    """x W^T + b, or silu(gate) * up of its halves, by one kernel.

    x          [T, N] bfloat16 or float16, T up to config.tile.t; neighbouring elements of a row adjacent in memory
    weight     [M, N] of that dtype, contiguous
    bias       [M] of that dtype, or None
    arrived    int32, 0, and 0 again afterwards: one for each tile of rows of weight, if programs share sums
    returns    [T, M], or [T, M / 2] if `gated`; sums are float32, and rounded once
    """
    (num_rows, columns), width, tile = x.shape, len(weight), config.tile
    assert x.stride(1) == 1 and weight.is_contiguous() and columns == weight.shape[1] and 0 < num_rows <= tile.t
    assert x.dtype == weight.dtype and x.dtype in (torch.bfloat16, torch.float16) and not (gated and width % 2)
    out = torch.empty((num_rows, width // 2 if gated else width), dtype=x.dtype, device=x.device)
    constants = _constants(tile, columns) | {"GATED": gated, "BIAS": bias is not None}
    sizes = (num_rows, width, columns, x.stride(0))
    warps_and_stages = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    if config.splits is None:
        grid = (triton.cdiv(width, tile.m), 1, 1)
        one_block = columns <= tile.n
        _linear_fma[grid](x, weight, bias, out, *sizes, ONE_BLOCK=one_block, **constants, **warps_and_stages)
        return out
    blocks = triton.cdiv(columns, tile.n)
    cut = cut_blocks(x, width, blocks, triton.cdiv(blocks, config.splits), tile, arrived, dtype=torch.float32)
    split = {"SPLIT": cut.splits}
    shared = (cut.parts, arrived, *sizes, blocks, cut.each)
    _linear_dot[cut.grid](x, weight, bias, out, *shared, **constants, **split, **warps_and_stages)
    return out


def multiply_normed(
    hidden: torch.Tensor,
    delta: torch.Tensor,
    norm: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    tile: Tile,
    *,
    gated: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """hidden + delta [T, N], rounded, and `multiply` of its RMSNorm; all contiguous, N up to tile.n, T up to tile.t."""
    (num_rows, columns), width = hidden.shape, len(weight)
    assert 0 < num_rows <= tile.t and columns <= tile.n and weight.is_contiguous() and not (gated and width % 2)
    assert hidden.is_contiguous() and delta.is_contiguous() and delta.shape == hidden.shape
    total = torch.empty((num_rows, columns), dtype=hidden.dtype, device=hidden.device)
    out = torch.empty((num_rows, width // 2 if gated else width), dtype=hidden.dtype, device=hidden.device)
    constants = _constants(tile, columns) | {"GATED": gated, "BIAS": bias is not None}
    del constants["STAGES"]
    _linear_normed[(triton.cdiv(width, tile.m), 1, 1)](
        hidden,
        delta,
        norm,
        total,
        weight,
        bias,
        out,
        num_rows,
        width,
        columns,
        eps,
        **constants,
        num_warps=tile.num_warps,
    )
    return total, out


def _constants(tile: Tile, columns: int) -> dict[str, int | bool]:
    return {
        "BLOCK_T": tile.t,
        "BLOCK_M": tile.m,
        "BLOCK_N": tile.n,
        "EVEN_N": columns % tile.n == 0,
        "STAGES": tile.num_stages,
    }


def compile_cases() -> list[CompileCase]:
    """Every configuration of the table; gated, with a bias, in float16 and of ragged sums: one of either kernel."""
    cases = [_case(config) for config in _TABLE.values()]
    for config in (_TABLE[2, "small"], _TABLE[16, "small"]):
        cases += [_case(config, gated=True), _case(config, bias=True, dtype="fp16"), _case(config, columns=576)]
    cases.append(_case(_TABLE[1, "small"], columns=512))
    for tile in _NORMED.values():
        cases += [_normed_case(tile), _normed_case(tile, gated=True), _normed_case(tile, columns=576)]
    return list({case.name: case for case in cases}.values())


def _normed_case(tile: Tile, *, gated: bool = False, columns: int = 1024) -> CompileCase:
    pointers = dict.fromkeys(("hidden", "delta", "norm", "total", "weight", "bias", "out"), "*bf16")
    constants = _constants(tile, columns) | {"GATED": gated, "BIAS": False}
    del constants["STAGES"]
    return CompileCase(
        name=f"normed T{tile.t} M{tile.m} N{columns}{' GATED' * gated}",
        kernel=_linear_normed,
        signature=pointers | dict.fromkeys(("T", "M", "N"), "i32") | {"eps": "fp32"},
        constants=constants,
        num_warps=tile.num_warps,
        aligned=(*pointers, "M", "N"),
    )


def _case(
    config: Config, *, gated: bool = False, bias: bool = False, dtype: str = "bf16", columns: int = 4096
) -> CompileCase:
    tile, dots = config.tile, config.splits is not None
    pointers = dict.fromkeys(("x", "weight", "bias", "out"), f"*{dtype}")
    numbers = ["T", "M", "N", "x_stride"]
    constants = _constants(tile, columns) | {"GATED": gated, "BIAS": bias}
    if dots:
        pointers |= {"parts": "*fp32", "arrived": "*i32"}
        numbers += ["blocks", "blocks_each"]
        constants["SPLIT"] = config.splits != 1
    else:
        constants["ONE_BLOCK"] = columns <= tile.n
    sizes = f"T{tile.t} M{tile.m} N{tile.n} W{tile.num_warps} S{tile.num_stages}"
    options = [dtype, f"N{columns}", *(name for name in ("GATED", "BIAS", "SPLIT") if constants.get(name))]
    return CompileCase(
        name=f"{'dot' if dots else 'fma'} {sizes} {' '.join(options)}",
        kernel=_linear_dot if dots else _linear_fma,
        signature=pointers | dict.fromkeys(numbers, "i32"),
        constants=constants,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        aligned=(*pointers, "M", "N", "x_stride"),
    )
