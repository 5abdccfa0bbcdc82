"""Likeliest tokens of rows of logits, in two launches: those of each piece, then those of all pieces.

A program takes the largest key of its piece, and then the next, once for each token requested. A key is the rank of a
logit followed by the token id: keys are distinct integers, so the result does not depend on how a maximum is found.

Floor: one read of the logits. Expected on an H200 for 20 tokens of few rows: a chain of 20 maxima, some 0.4 us each,
twice: 15 to 20 us, whatever the vocabulary. 64 rows of 151,936 are 4,800 programs, 16 at once a multiprocessor: 30 us.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl

from ..compile_case import CompileCase

PIECE = 2048
_KEPT = 32
"""Places for the tokens of a piece: as many as are ever asked for, so that no request waits for a compiler."""
_PIECE_WARPS = 4
_ROW_WARPS = 8
_NO_KEY = tl.constexpr(-(1 << 63))


@triton.jit
def _largest(keys, count, KEPT: tl.constexpr):
    """The `count` largest of distinct `keys` int64 [N], in falling order, [KEPT]."""
    found = tl.full([KEPT], _NO_KEY, tl.int64)
    for place in range(count):
        top = tl.max(keys, 0)
        found = tl.where(tl.arange(0, KEPT) == place, top, found)
        keys = tl.where(keys == top, _NO_KEY, keys)
    return found


@triton.jit(do_not_specialize=["count"])
def _pieces_kernel(logits, keys, logits_stride, V, count, KEPT: tl.constexpr, PIECE: tl.constexpr):
    row, piece = tl.program_id(0), tl.program_id(1)
    token = piece * PIECE + tl.arange(0, PIECE)
    inside = token < V
    x = tl.load(logits + row.to(tl.int64) * logits_stride + token, mask=inside, other=0.0)
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)  # 0 and -0 are the same
    order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    found = _largest(tl.where(inside, (order << 32) | (V - 1 - token), _NO_KEY), count, KEPT)
    place = tl.arange(0, KEPT)
    tl.store(keys + (row * tl.num_programs(1) + piece) * KEPT + place, found)


@triton.jit(do_not_specialize=["num_keys", "count"])
def _rows_kernel(keys, tokens, num_keys, V, count, KEPT: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, WIDTH)
    found = _largest(tl.load(keys + row * num_keys + at, mask=at < num_keys, other=_NO_KEY), count, KEPT)
    place = tl.arange(0, KEPT)
    tl.store(tokens + row * count + place, V - 1 - (found & 0xFFFFFFFF), mask=place < count)


def likeliest(logits: torch.Tensor, count: int) -> torch.Tensor:
    """The `count` likeliest token ids of each row, int64 [R, count], of `logits` [R, V] float32: as reference.likeliest
    has them. Waits for nothing."""
    num_rows, vocab_size = logits.shape
    assert logits.dtype == torch.float32 and logits.stride(1) == 1, (logits.dtype, logits.stride())
    tokens = torch.empty(num_rows, count, dtype=torch.int64, device=logits.device)
    if count == 0 or num_rows == 0:
        return tokens
    kept, num_pieces = max(triton.next_power_of_2(count), _KEPT), triton.cdiv(vocab_size, PIECE)
    keys = torch.empty(num_rows, num_pieces, kept, dtype=torch.int64, device=logits.device)
    _pieces_kernel[(num_rows, num_pieces)](
        logits, keys, logits.stride(0), vocab_size, count, KEPT=kept, PIECE=PIECE, num_warps=_PIECE_WARPS
    )
    width = triton.next_power_of_2(num_pieces * kept)
    _rows_kernel[(num_rows,)](
        keys, tokens, num_pieces * kept, vocab_size, count, KEPT=kept, WIDTH=width, num_warps=_ROW_WARPS
    )
    return tokens


def compile_cases() -> list[CompileCase]:
    """20 tokens, at vocabularies of up to 131,072 and 262,144."""
    pieces = {"logits": "*fp32", "keys": "*i64", "logits_stride": "i32", "V": "i32", "count": "i32"}
    rows = {"keys": "*i64", "tokens": "*i64", "num_keys": "i32", "V": "i32", "count": "i32"}
    case = CompileCase("likeliest of pieces", _pieces_kernel, pieces, {"KEPT": 32, "PIECE": PIECE}, _PIECE_WARPS)
    cases = [replace(case, aligned=("logits", "keys", "logits_stride", "V"))]
    for width in (2048, 4096):
        case = CompileCase(f"of rows {width}", _rows_kernel, rows, {"KEPT": 32, "WIDTH": width}, _ROW_WARPS)
        cases.append(replace(case, aligned=("keys", "tokens", "V")))
    return cases
