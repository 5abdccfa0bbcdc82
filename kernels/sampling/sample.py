"""The sampler on a GPU: penalties, bias, mask, temperature, top-k, top-p, min-p and the draw, in two or four launches.

`scan` [B, blocks]: reads the logits once. Of each block: the largest, its lowest index, the sum of exp, whether all are
finite, and, for filtered rows, how many tokens lie in each of 30 bins below the block's largest.
`settle` [B]: joins the blocks. Finishes greedy rows, and rows drawn without filters: picks the block by the sums, reads
it again and inverts. For filtered rows it finds, from the bins, a bound below which no filter keeps a token.
`collect`, `draw` (`threshold`): the tokens over the bound, mostly some hundred, and the exact filters on them.

Nothing is sorted and no logits are written. A row's result depends on its own data alone, to the bit: the partition
depends on the vocabulary alone, and sums are made in a fixed order, or of whole numbers, where order does not matter.

Floor: one read of the logits, B * V * 2 bytes for bfloat16: at B = 64, V = 151,936 19.5 MB, 5 us at 4.3 TB/s.
Expected on an H200 at that size: `scan` is bound by its instructions, about 20 a logit for greedy rows, 60 with bins:
9.7 M logits at 16,896 lanes and 1.8 GHz are 7 us and 20 us; `settle` 3 us (a chain of latencies); `collect` up to 5 us,
`draw` 5 us; 1.3 us a launch in a graph. Greedy with mask: 13 us. All filters on each row: 40 us. B = 1: 5 us and 15 us.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
import triton
import triton.language as tl

from ..compile_case import CompileCase
from .bound import plan_list
from .logits import (
    BLOCK_LINES,
    FILTERED,
    GREEDY,
    NO_NUMBER,
    NO_TOKEN,
    NUM_BINS,
    ROW_ARGUMENTS,
    UNIT,
    bin_of,
    bin_scale,
    block_index,
    inverse_temperature,
    read_block,
    record,
    row_kind,
    running_sum,
    weigh,
)
from .random_bits import scaled_floor, uniform_bits
from .reference import SampleRows, SampleTables
from .threshold import DRAW_TILE, collect, draw

NUM_WARPS = 8

_BIASES = 1024
"""Width of a bias table up to which it makes no other kernel."""


@triton.jit(do_not_specialize=["K"], do_not_specialize_on_alignment=ROW_ARGUMENTS)
def scan(
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    logits,
    logits_stride,
    repetitions,
    frequencys,
    presences,
    count_rows,
    mask_rows,
    bias_rows,
    counts,
    masks,
    bias_ids,
    bias_values,
    block_top,
    block_token,
    block_sum,
    block_bins,
    V,
    W,
    K,
    NB,
    HAS_COUNTS: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    K_PAD: tl.constexpr,
    LINES: tl.constexpr,
    WHOLE_LINES: tl.constexpr,
    FILTERS: tl.constexpr,
):
    block = tl.program_id(0)
    row = tl.program_id(1)
    temperature = tl.load(temperatures + row)
    if temperature >= 0.0:
        kind = row_kind(temperature, tl.load(top_ks + row), tl.load(top_ps + row), tl.load(min_ps + row), V)
        x, all_finite = read_block(
            row, block, logits, logits_stride, repetitions, frequencys, presences, count_rows, mask_rows, bias_rows,
            counts, masks, bias_ids, bias_values, V, W, K, HAS_COUNTS, HAS_MASK, HAS_BIAS, K_PAD, LINES, WHOLE_LINES,
        )  # fmt: skip
        at = row * NB + block
        top = tl.max(tl.max(x, 1), 0)
        token = block * (LINES * 32) + tl.min(tl.min(tl.where(x == top, block_index(0, LINES), 2147483647), 1), 0)
        tl.store(block_top + at, top)
        tl.store(block_token + at, tl.where(all_finite, token, -1))
        if kind != GREEDY:
            scale = inverse_temperature(temperature)
            shares = tl.exp2((x - tl.where(top == float("-inf"), 0.0, top)) * scale)
            tl.store(block_sum + at, tl.sum(tl.sum(shares, 1), 0))
            if FILTERS and kind == FILTERED:
                bins = tl.ravel(bin_of(x, top, bin_scale(scale)))
                tl.store(block_bins + at * 32 + tl.arange(0, 32), tl.histogram(bins, 32))


@triton.jit(do_not_specialize=["K"], do_not_specialize_on_alignment=ROW_ARGUMENTS)
def settle(
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    seeds,
    positions,
    logits,
    logits_stride,
    repetitions,
    frequencys,
    presences,
    count_rows,
    mask_rows,
    bias_rows,
    token_rows,
    counts,
    masks,
    bias_ids,
    bias_values,
    last_tokens,
    block_top,
    block_token,
    block_sum,
    block_bins,
    block_limit,
    block_offset,
    row_top,
    row_mass,
    row_bound,
    list_size,
    out,
    V,
    W,
    K,
    NB,
    HAS_COUNTS: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_LAST: tl.constexpr,
    K_PAD: tl.constexpr,
    LINES: tl.constexpr,
    WHOLE_LINES: tl.constexpr,
    NB_PAD: tl.constexpr,
    FILTERS: tl.constexpr,
):
    row = tl.program_id(0)
    temperature = tl.load(temperatures + row)
    size = tl.full([], 0, tl.int32)
    if temperature >= 0.0:
        top_k = tl.load(top_ks + row)
        top_p = tl.load(top_ps + row)
        min_p = tl.load(min_ps + row)
        kind = row_kind(temperature, top_k, top_p, min_p, V)
        blocks = tl.arange(0, NB_PAD)
        at = row * NB + blocks
        tops = tl.load(block_top + at, mask=blocks < NB, other=float("-inf"))
        likeliest = tl.load(block_token + at, mask=blocks < NB, other=2147483647)
        top = tl.max(tops, 0)
        token = tl.min(tl.where(tops == top, likeliest, 2147483647), 0)
        done = kind == GREEDY
        if (tl.min(likeliest, 0) < 0) | (top == float("inf")):
            token = tl.full([], NO_NUMBER, tl.int32)
            done = tl.full([], 1, tl.int1)
        elif top == float("-inf"):
            token = tl.full([], NO_TOKEN, tl.int32)
            done = tl.full([], 1, tl.int1)
        elif kind != GREEDY:
            scale = inverse_temperature(temperature)
            sums = tl.load(block_sum + at, mask=blocks < NB, other=0.0)
            masses = (sums * tl.exp2((tops - top) * scale) * UNIT).to(tl.int64)
            mass = tl.sum(masses, 0)
            if FILTERS and kind == FILTERED:
                tl.store(row_top + row, tl.where(top == 0.0, 0.0, top))  # not -0.0, which is lower in its bits
                tl.store(row_mass + row, mass)
                size = plan_list(
                    row, tops, top, mass.to(tl.float32) / UNIT, scale, top_k, top_p, min_p, block_bins, block_limit,
                    block_offset, row_bound, V, NB, LINES, NB_PAD,
                )  # fmt: skip
            else:
                wanted = scaled_floor(uniform_bits(tl.load(seeds + row), tl.load(positions + row)), mass)
                block = tl.sum((tl.cumsum(masses, 0) <= wanted).to(tl.int32), 0)
                own = tl.sum(tl.where(blocks == block, masses, 0), 0)
                wanted -= tl.sum(tl.where(blocks < block, masses, 0), 0)
                x, _ = read_block(
                    row, block, logits, logits_stride, repetitions, frequencys, presences, count_rows, mask_rows,
                    bias_rows, counts, masks, bias_ids, bias_values, V, W, K, HAS_COUNTS, HAS_MASK, HAS_BIAS, K_PAD,
                    LINES, WHOLE_LINES,
                )  # fmt: skip
                # Weights anew, in units of the block's largest: all may be less than a unit of the row's.
                reach = running_sum(weigh(x, tl.max(tl.max(x, 1), 0), scale))
                total = tl.max(tl.max(reach, 1), 0)
                part = (wanted.to(tl.float64) / own.to(tl.float64) * total.to(tl.float64)).to(tl.int64)
                passed = (reach <= tl.minimum(part, total - 1)).to(tl.int32)
                token = block * (LINES * 32) + tl.sum(tl.sum(passed, 1), 0)
                done = tl.full([], 1, tl.int1)
        if done:
            record(
                row, token.to(tl.int64), out, count_rows, counts, token_rows, last_tokens, V, HAS_COUNTS, HAS_LAST
            )  # fmt: skip
    if FILTERS:
        tl.store(list_size + row, size)


@dataclass(frozen=True, slots=True)
class SampleWorkspace:
    """Device memory that `sample_rows` works in, made once for the largest batch; holds nothing between calls.

    8 bytes a row and token, of which mostly little is touched: the list of likely tokens, [R, V]; else [R, blocks].
    """

    block_top: torch.Tensor
    block_token: torch.Tensor
    block_sum: torch.Tensor
    block_bins: torch.Tensor
    block_limit: torch.Tensor
    block_offset: torch.Tensor
    row_top: torch.Tensor
    row_mass: torch.Tensor
    row_bound: torch.Tensor
    list_size: torch.Tensor
    list_logits: torch.Tensor
    list_tokens: torch.Tensor
    lines: int
    tile: int

    @classmethod
    def create(
        cls,
        max_rows: int,
        vocab_size: int,
        device: torch.device | str,
        *,
        lines: int = BLOCK_LINES,
        tile: int = DRAW_TILE,
    ) -> SampleWorkspace:
        """`lines` of 32 tokens are a block, and `tile` tokens of a list are read at once: for tests, powers of two."""
        blocks = (max_rows, triton.cdiv(vocab_size, lines * 32))

        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        return cls(
            block_top=empty(*blocks, dtype=torch.float32),
            block_token=empty(*blocks),
            block_sum=empty(*blocks, dtype=torch.float32),
            block_bins=empty(*blocks, NUM_BINS),
            block_limit=empty(*blocks),
            block_offset=empty(*blocks),
            row_top=empty(max_rows, dtype=torch.float32),
            row_mass=empty(max_rows, dtype=torch.int64),
            row_bound=empty(max_rows, dtype=torch.float32),
            list_size=empty(max_rows),
            list_logits=empty(max_rows, vocab_size, dtype=torch.float32),
            list_tokens=empty(max_rows, vocab_size),
            lines=lines,
            tile=tile,
        )


def sample_rows(
    logits: torch.Tensor,
    rows: SampleRows,
    tables: SampleTables,
    workspace: SampleWorkspace,
    out: torch.Tensor,
    *,
    filters: bool = True,
) -> None:
    """Draws as `reference.sample_rows` does, on the device: no synchronisation or allocation, launches by shapes alone.

    logits   [B, V] bfloat16, float16 or float32, last dimension contiguous; read only
    out      [B] int64
    filters  False promises that no row has top-k, top-p or min-p, and saves two launches
    """
    num_rows, vocab_size = logits.shape
    assert logits.stride(1) == 1 and num_rows <= len(workspace.list_size), (logits.shape, logits.stride())
    assert vocab_size == workspace.list_logits.shape[1], (vocab_size, workspace.list_logits.shape)
    num_blocks = workspace.block_top.shape[1]
    # A table that is not there is never read; a pointer is passed all the same.
    counts, masks, bias_ids, bias_values, last_tokens = (
        out if table is None else table
        for table in (tables.counts, tables.mask, tables.bias_ids, tables.bias_values, tables.last_token)
    )
    num_biases = 0 if tables.bias_ids is None else bias_ids.shape[1]
    arguments = {
        "logits": logits, "logits_stride": logits.stride(0), "out": out, "V": vocab_size, "NB": num_blocks,
        "W": 0 if tables.mask is None else masks.shape[1], "K": num_biases,
        "counts": counts, "masks": masks, "bias_ids": bias_ids, "bias_values": bias_values, "last_tokens": last_tokens,
        "HAS_COUNTS": tables.counts is not None, "HAS_MASK": tables.mask is not None,
        "HAS_BIAS": tables.bias_ids is not None, "HAS_LAST": tables.last_token is not None,
        "K_PAD": max(_BIASES, triton.next_power_of_2(num_biases)), "NB_PAD": triton.next_power_of_2(num_blocks),
        "LINES": workspace.lines, "TILE": workspace.tile, "FILTERS": filters,
        "WHOLE_LINES": vocab_size % 32 == 0,
    }  # fmt: skip
    arguments |= {f"{field.name}s": getattr(rows, field.name) for field in fields(rows)}
    arguments |= {field.name: getattr(workspace, field.name) for field in fields(workspace)}
    _launch(scan, (num_blocks, num_rows), arguments)
    _launch(settle, (num_rows,), arguments)
    if filters:
        _launch(collect, (num_blocks, num_rows), arguments)
        _launch(draw, (num_rows,), arguments)


def _launch(kernel: Any, grid: tuple[int, ...], arguments: dict[str, Any]) -> None:
    """Kernels name what they take; the same names mean the same everywhere."""
    # Without fused multiply-add, penalties round as the reference does.
    kernel[grid](**{name: arguments[name] for name in kernel.arg_names}, num_warps=NUM_WARPS, enable_fp_fusion=False)


_FLOATS = ("temperatures", "top_ps", "min_ps", "repetitions", "frequencys", "presences", "bias_values", "block_sum",
           "block_top", "row_top", "row_bound", "list_logits")  # fmt: skip
_LONGS = ("seeds", "positions", "last_tokens", "row_mass", "out")
_SCALARS = ("logits_stride", "V", "W", "K", "NB")


def compile_cases() -> list[CompileCase]:
    """Greedy with a mask, and all that a row can ask for, at a vocabulary of 151,936."""
    constants = {
        "HAS_COUNTS": True, "HAS_MASK": True, "HAS_BIAS": True, "HAS_LAST": True, "K_PAD": _BIASES, "NB_PAD": 64,
        "LINES": BLOCK_LINES, "TILE": DRAW_TILE, "FILTERS": True, "WHOLE_LINES": True,
    }  # fmt: skip
    greedy = constants | {"HAS_COUNTS": False, "HAS_BIAS": False, "FILTERS": False}
    filtered = greedy | {"HAS_MASK": False, "FILTERS": True}
    cases = [_case(f"{kernel.__name__} bf16", kernel, "bf16", constants) for kernel in (scan, settle, collect, draw)]
    cases += [_case(f"{kernel.__name__} fp32", kernel, "fp32", constants) for kernel in (scan, settle, collect)]
    cases += [_case(f"{kernel.__name__} bf16 greedy", kernel, "bf16", greedy) for kernel in (scan, settle)]
    return cases + [_case(f"{kernel.__name__} bf16 filters", kernel, "bf16", filtered) for kernel in (scan, collect)]


def _case(name: str, kernel: Any, dtype: str, constants: dict[str, Any]) -> CompileCase:
    types = dict.fromkeys(_FLOATS, "*fp32") | dict.fromkeys(_LONGS, "*i64") | dict.fromkeys(_SCALARS, "i32")
    types |= {"logits": f"*{dtype}", "counts": "*i16"}
    signature = {arg: types.get(arg, "*i32") for arg in kernel.arg_names if arg not in constants}
    pointers = (arg for arg, kind in signature.items() if kind.startswith("*") and arg not in ROW_ARGUMENTS)
    aligned = ("logits_stride", "V", *pointers)
    return CompileCase(
        name=name,
        kernel=kernel,
        signature=signature,
        constants={arg: value for arg, value in constants.items() if arg in kernel.arg_names},
        num_warps=NUM_WARPS,
        aligned=tuple(arg for arg in aligned if arg in signature),
        fusion=False,
    )
