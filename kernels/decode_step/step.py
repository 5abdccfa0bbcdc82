"""Start and end of a decode step on the device: reads the last drawn tokens, and stores the newly drawn ones.

With these, a step needs nothing from the host while the same sequences continue. Floor: about 40 bytes a row, so that
each costs just one launch.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..compile_case import CompileCase
from .inputs import DecodeInputs

_BLOCK = 128


@triton.jit(do_not_specialize=["num_rows"])
def _begin_kernel(
    slots, last_token, position, page_table, tokens, positions, draw_positions, context_len, write_slot,
    num_rows, table_width, PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < num_rows
    slot = tl.load(slots + row, mask=inside, other=0).to(tl.int64)
    at = tl.load(position + slot, mask=inside, other=0)
    page = tl.load(page_table + slot * table_width + at // PAGE, mask=inside, other=0).to(tl.int64)
    tl.store(tokens + row, tl.load(last_token + slot, mask=inside, other=0), mask=inside)
    tl.store(positions + row, at, mask=inside)
    tl.store(draw_positions + row, at + 1, mask=inside)
    tl.store(context_len + row, (at + 1).to(tl.int32), mask=inside)
    tl.store(write_slot + row, page * PAGE + at % PAGE, mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def _end_kernel(slots, drawn, last_token, position, num_rows, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < num_rows
    slot = tl.load(slots + row, mask=inside, other=0).to(tl.int64)
    real = inside & (slot > 0)
    token = tl.load(drawn + row, mask=inside, other=0)
    # A row without a token is ended by the host; until then it goes on with a token that exists.
    tl.store(last_token + slot, tl.maximum(token, 0), mask=real)
    tl.store(position + slot, tl.load(position + slot, mask=real, other=0) + 1, mask=real)


def begin_decode(
    slots: torch.Tensor,
    last_token: torch.Tensor,
    position: torch.Tensor,
    page_table: torch.Tensor,
    page_size: int,
    inputs: DecodeInputs,
) -> None:
    """Fills `inputs` with the next step of the sequences that sit in `slots`.

    slots         int32 [B]      slot 0 is nobody's and may come up often: its position is 0, its page is page 0
    last_token    int64 [S]      of each slot: the token drawn last
    position      int64 [S]      where that token goes
    page_table    int32 [S, P]
    """
    num_rows = slots.shape[0]
    _begin_kernel[(triton.cdiv(num_rows, _BLOCK),)](
        slots, last_token, position, page_table, inputs.tokens, inputs.positions, inputs.draw_positions,
        inputs.context_len, inputs.write_slot, num_rows, page_table.shape[1], PAGE=page_size, BLOCK=_BLOCK,
    )  # fmt: skip


def end_decode(slots: torch.Tensor, drawn: torch.Tensor, last_token: torch.Tensor, position: torch.Tensor) -> None:
    """Puts the tokens `drawn` int64 [B] in their slots, and moves the positions on. Slot 0 stays as it is.

    A negative entry of `drawn` says that there is no token; the slot then goes on with token 0.
    """
    num_rows = slots.shape[0]
    _end_kernel[(triton.cdiv(num_rows, _BLOCK),)](slots, drawn, last_token, position, num_rows, BLOCK=_BLOCK)


def compile_cases() -> list[CompileCase]:
    begin = {
        "slots": "*i32", "last_token": "*i64", "position": "*i64", "page_table": "*i32", "tokens": "*i64",
        "positions": "*i64", "draw_positions": "*i64", "context_len": "*i32", "write_slot": "*i64",
        "num_rows": "i32", "table_width": "i32",
    }  # fmt: skip
    end = {"slots": "*i32", "drawn": "*i64", "last_token": "*i64", "position": "*i64", "num_rows": "i32"}
    return [
        CompileCase("begin_decode", _begin_kernel, begin, {"PAGE": 16, "BLOCK": _BLOCK}, num_warps=4),
        CompileCase("end_decode", _end_kernel, end, {"BLOCK": _BLOCK}, num_warps=4),
    ]
