"""Advances the grammar states of a batch on the device, in one launch.

Floor: four dependent reads of a few bytes a row (request, token, class, transition), about 3 us whatever the batch:
latency alone counts, so that rows are spread over many small programs.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..compile_case import CompileCase
from .grammar_table import GrammarPool

_BLOCK = 32


def advance_states(
    pool: GrammarPool,
    *,
    states: torch.Tensor,
    places: torch.Tensor,
    state_row: torch.Tensor,
    tokens: torch.Tensor,
    mask_row: torch.Tensor,
) -> None:
    """Moves each row of a batch by its token, in place, and says which row of the pool's mask it is under then.

        states       int32 [N]       state of each request, relative to its table; -1: nothing is allowed any more
        places       int32 [N, 4]    `TablePlace.entry` of each request's table
        state_row    int32 [B]       which request a row of the batch is; -1: it has no grammar (or is padding)
        tokens       int64 [B]       the token that follows; negative: none, the state stays
        mask_row     int32 [B]       written: row of `pool.mask`, 0 (nothing) in state -1, or -1 without a grammar

    Requests of different rows are distinct. All tensors are contiguous; never waits for the device.
    """
    num_rows = len(state_row)
    if num_rows == 0:
        return
    _advance_kernel[(triton.cdiv(num_rows, _BLOCK),)](
        pool.token_class,
        pool.next_state,
        states,
        places,
        state_row,
        tokens,
        mask_row,
        num_rows,
        pool.vocab_size,
        BLOCK=_BLOCK,
        num_warps=1,
    )


@triton.jit(do_not_specialize=["num_rows"])
def _advance_kernel(
    token_class,
    next_state,
    states,
    places,
    state_row,
    tokens,
    mask_row,
    num_rows,
    vocab_size,
    BLOCK: tl.constexpr,
):
    batch_row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = batch_row < num_rows
    row = tl.load(state_row + batch_row, mask=inside, other=-1)
    token = tl.load(tokens + batch_row, mask=inside, other=-1)
    has_grammar = row >= 0
    state = tl.load(states + row, mask=has_grammar, other=-1)
    place = places + row.to(tl.int64) * 4
    mask_base = tl.load(place, mask=has_grammar, other=0)
    class_base = tl.load(place + 1, mask=has_grammar, other=0)
    next_base = tl.load(place + 2, mask=has_grammar, other=0)
    num_classes = tl.load(place + 3, mask=has_grammar, other=0)
    known = (state >= 0) & (token >= 0) & (token < vocab_size)
    kind = tl.load(token_class + class_base + token, mask=known, other=0)
    at = next_base + state.to(tl.int64) * num_classes + kind
    following = tl.load(next_state + at, mask=known, other=-1)
    state = tl.where(token < 0, state, following)
    tl.store(states + row, state, mask=has_grammar)
    under = tl.where(has_grammar, tl.where(state >= 0, mask_base + state, 0), -1)
    tl.store(mask_row + batch_row, under, mask=inside)


def compile_cases() -> list[CompileCase]:
    """The one configuration there is."""
    pointers = dict.fromkeys(("token_class", "next_state", "states", "places", "state_row", "mask_row"), "*i32")
    pointers |= {"tokens": "*i64"}
    return [
        CompileCase(
            name="advance_states",
            kernel=_advance_kernel,
            signature=pointers | {"num_rows": "i32", "vocab_size": "i32"},
            constants={"BLOCK": _BLOCK},
            num_warps=1,
            aligned=tuple(pointers),
        )
    ]
