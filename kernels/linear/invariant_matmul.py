"""Batch-invariant linear layer: the result of a row does not depend, to the bit, on the rest of the batch.

cuBLAS picks a different kernel, with a different order of sums, for each number of rows, so that a token's numbers
depend on how many others share its step. Here the sum over N runs in one fixed order, in one program, through one
instruction.

Floor for [T, N] x [M, N]: max((M N + T (M + N)) * itemsize bytes, 2 T M N FLOPs); an H200 reads bfloat16 weights for as
long as it computes at about 180 rows. Expected relative to cuBLAS, not measured yet: equal at T <= 64 and M >= 4096,
where both wait for the weights; 1.5 to 2 times its time where M is small (there are fewer programs than
multiprocessors, and the sum is not split) and for long prompts (smaller tiles, so more reading from L2).

Background, and the cost of other implementations: He et al. 2025, "Defeating nondeterminism in LLM inference".
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl

from ..compile_case import CompileCase
from ..processor import is_roomy
from .tiles import Tile

NARROW = 8192
"""Weights of fewer rows are cut into tiles half as wide, so that enough programs read them."""

TALL_FROM = 512
"""Rows from which a tile has twice the height. Both heights issue the same instruction in the same order."""


# By kind of weight, for 227 KiB of shared memory (sm90, sm100), 163 (sm80) and 99 (sm86, and all smaller ones since):
# the height for few rows, then that for many. m and n must be those of the other height: they set the instruction and
# the order of the sum. Few wide stages in flight are what keeps a narrow weight's few programs at the memory's rate.
# Heights have instructions of their own on sm100, which nobody has compared: all rows have one.
_TILES: dict[tuple[str, str], tuple[Tile, Tile]] = {
    ("sm90", "narrow"): (Tile(64, 64, 4, 6, n=128), Tile(128, 64, 8, 4, n=128)),
    ("sm90", "wide"): (Tile(64, 128, 4, 4, n=64), Tile(128, 128, 8, 4, n=64)),
    ("sm100", "narrow"): (Tile(128, 64, 8, 4, n=128), Tile(128, 64, 8, 4, n=128)),
    ("sm100", "wide"): (Tile(128, 128, 8, 4, n=64), Tile(128, 128, 8, 4, n=64)),
    ("sm80", "narrow"): (Tile(64, 64, 4, 6, n=64), Tile(128, 64, 8, 4, n=64)),
    ("sm80", "wide"): (Tile(64, 128, 4, 3, n=64), Tile(128, 128, 8, 3, n=64)),
    ("sm86", "narrow"): (Tile(64, 64, 8, 5, n=64), Tile(128, 64, 8, 4, n=64)),
    ("sm86", "wide"): (Tile(64, 128, 4, 3, n=64), Tile(128, 128, 8, 3, n=64)),
}
_FAMILIES: dict[str, dict[str, Any]] = {
    "sm80": {"roomy": True, "before": 90},
    "sm86": {"roomy": False},
    "sm90": {"roomy": True, "since": 90, "before": 100},
    "sm100": {"roomy": True, "since": 100},
}
_FLOAT32 = Tile(64, 64, 4, 3, n=32)
_GROUP = 8  # tiles of x that take turns at a tile of weight, so that L2 serves both


@triton.jit(do_not_specialize=["T"])
def _linear(
    x,  # [T, N], rows x_stride apart
    weight,  # [M, N]
    bias,  # [M], read with BIAS only
    out,  # [T, M]
    T,
    M,
    N,
    x_stride,
    BLOCK_T: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    EVEN_N: tl.constexpr,  # N is a multiple of BLOCK_N
    BIAS: tl.constexpr,
    GROUP: tl.constexpr,
    STAGES: tl.constexpr,
):
    program = tl.program_id(0)
    tiles_t = tl.cdiv(T, BLOCK_T)
    in_group = GROUP * tl.cdiv(M, BLOCK_M)
    first_t = program // in_group * GROUP
    height = tl.minimum(tiles_t - first_t, GROUP)
    t = (first_t + program % in_group % height) * BLOCK_T + tl.arange(0, BLOCK_T)
    m = program % in_group // height * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.arange(0, BLOCK_N)
    has_row = t < T
    x_at = x + t.to(tl.int64)[:, None] * x_stride + n[None, :]
    # Past the last row of weight that row is read again: this needs no mask, and nobody stores what comes of it.
    weight_at = weight + tl.minimum(m, M - 1).to(tl.int64)[None, :] * N + n[:, None]
    acc = tl.zeros([BLOCK_T, BLOCK_M], tl.float32)
    for begin in tl.range(0, N, BLOCK_N, num_stages=STAGES):
        if EVEN_N:
            a = tl.load(x_at, mask=has_row[:, None], other=0.0)
            b = tl.load(weight_at)
        else:
            inside = begin + n < N
            a = tl.load(x_at, mask=has_row[:, None] & inside[None, :], other=0.0)
            b = tl.load(weight_at, mask=inside[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
        x_at += BLOCK_N
        weight_at += BLOCK_N
    if BIAS:
        acc += tl.load(bias + m, mask=m < M, other=0.0).to(tl.float32)[None, :]
    out_at = out + t.to(tl.int64)[:, None] * M + m[None, :]
    tl.store(out_at, acc.to(out.dtype.element_ty), mask=has_row[:, None] & (m < M)[None, :])


def invariant_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """x weight^T + bias. A row of the result depends on that row of `x`, `weight` and `bias` alone, to the bit.

    x         [T, N], neighbouring elements of a row adjacent in memory
    weight    [M, N], contiguous, of the dtype of `x`: float32, float16 or bfloat16
    bias      [M]
    out       [T, M], contiguous; made if None
    returns   [T, M] of the dtype of `x`; sums are float32, and rounded once
    """
    (num_rows, num_terms), width = x.shape, weight.shape[0]
    assert weight.shape[1] == num_terms and weight.dtype == x.dtype
    assert x.stride(1) == 1 and weight.is_contiguous()
    if out is None:
        out = torch.empty((num_rows, width), dtype=x.dtype, device=x.device)
    assert out.shape == (num_rows, width) and out.is_contiguous()
    if num_rows == 0:
        return out
    tile = _choose(_family(x.device), x.dtype, width, num_rows)
    grid = (triton.cdiv(num_rows, tile.t) * triton.cdiv(width, tile.m),)
    _linear[grid](
        x,
        weight,
        bias,
        out,
        num_rows,
        width,
        num_terms,
        x.stride(0),
        **_constants(tile, num_terms, has_bias=bias is not None),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out


def _choose(family: str, dtype: torch.dtype, width: int, num_rows: int) -> Tile:
    if dtype == torch.float32:
        return _FLOAT32
    kind = "narrow" if width < NARROW else "wide"
    return _TILES[family, kind][num_rows >= TALL_FROM]


def _constants(tile: Tile, num_terms: int, *, has_bias: bool) -> dict[str, int | bool]:
    even = num_terms % tile.n == 0
    blocks = {"BLOCK_T": tile.t, "BLOCK_M": tile.m, "BLOCK_N": tile.n, "GROUP": _GROUP, "STAGES": tile.num_stages}
    return {**blocks, "EVEN_N": even, "BIAS": has_bias}


@lru_cache
def _family(device: torch.device) -> str:
    """Returns the part of the table for `device`; the largest GPUs' for the CPU, where kernels are only tested."""
    if not is_roomy(device):
        return "sm86"
    major = torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 9
    return {8: "sm80", 9: "sm90"}.get(major, "sm100")


def compile_cases() -> list[CompileCase]:
    """Both heights of both widths on each family; and once each ragged sums, float16, float32."""
    cases = [
        _case(f"{kind} T{tile.t}", tile, "bf16", family=family)
        for (family, kind), tiles in _TILES.items()
        for tile in dict.fromkeys(tiles)
    ]
    narrow, wide = _TILES["sm90", "narrow"][0], _TILES["sm90", "wide"][0]
    return [
        *cases,
        _case("narrow T64 ragged bias", narrow, "bf16", family="sm90", num_terms=576),
        _case("wide T64 fp16", wide, "fp16", family="sm90"),
        _case("fp32", _FLOAT32, "fp32"),
    ]


def _case(name: str, tile: Tile, dtype: str, *, family: str = "", num_terms: int = 4096) -> CompileCase:
    constants = _constants(tile, num_terms, has_bias="bias" in name)
    signature = {"x": f"*{dtype}", "weight": f"*{dtype}", "bias": f"*{dtype}", "out": f"*{dtype}"}
    aligned = (*signature, "M", "N", "x_stride")
    return CompileCase(
        name=f"linear {name} {family}".strip(),
        kernel=_linear,
        signature=signature | dict.fromkeys(("T", "M", "N", "x_stride"), "i32"),
        constants=constants,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        aligned=aligned,
        **_FAMILIES.get(family, {}),
    )
