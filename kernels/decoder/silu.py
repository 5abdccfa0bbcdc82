"""Gate of the feed-forward network: silu(gate) * up.

Floor: 3 * T * N elements move, a handful of FLOPs each: bandwidth alone counts, and below a few hundred rows the
launch alone. Shazeer 2020, arXiv 2002.05202.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..compile_case import CompileCase

_BLOCK = 1024
_NUM_WARPS = 4  # eight numbers of either half to a thread: one 16-byte load of 16-bit numbers each
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def silu_multiply(gate_up: torch.Tensor) -> torch.Tensor:
    """See DecoderOps.silu_multiply; computed in float32 and rounded once. Rows may be strided.

    Raises:
        ValueError: a shape or a dtype that the kernel does not serve.
    """
    num_rows, width = gate_up.shape
    if gate_up.dtype not in _DTYPES or width % 2 or gate_up.stride(1) != 1:
        raise ValueError(f"gate_up must be [T, 2 * N] of 16 or 32-bit floats, got {gate_up.dtype} {[num_rows, width]}")
    out = torch.empty((num_rows, width // 2), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        grid = (num_rows * triton.cdiv(width // 2, _BLOCK),)
        _silu_multiply_kernel[grid](gate_up, out, gate_up.stride(0), N=width // 2, BLOCK=_BLOCK, num_warps=_NUM_WARPS)
    return out


@triton.jit
def _silu_multiply_kernel(gate_up, out, row_stride, N: tl.constexpr, BLOCK: tl.constexpr):
    blocks: tl.constexpr = (N + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // blocks).to(tl.int64)
    n = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = n < N
    at = gate_up + row * row_stride + n
    gate = tl.load(at, mask=inside, other=0.0)
    up = tl.load(at + N, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    result = wide / (1.0 + tl.exp(-wide)) * up.to(tl.float32)
    tl.store(out + row * N + n, result.to(gate.dtype), mask=inside)


def compile_cases() -> list[CompileCase]:
    """A large model in each dtype, and a feed-forward size that fills no block."""
    return [_case(size, dtype) for size, dtype in ((12288, "bf16"), (12288, "fp16"), (12288, "fp32"), (1536, "bf16"))]


def _case(size: int, dtype: str) -> CompileCase:
    return CompileCase(
        name=f"silu_multiply N{size} {dtype}",
        kernel=_silu_multiply_kernel,
        signature={"gate_up": f"*{dtype}", "out": f"*{dtype}", "row_stride": "i32"},
        constants={"N": size, "BLOCK": _BLOCK},
        num_warps=_NUM_WARPS,
        aligned=("gate_up", "out", "row_stride"),
    )
