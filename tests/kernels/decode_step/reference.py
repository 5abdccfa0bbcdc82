"""A decode step in plain torch: what the kernels are compared with."""

from __future__ import annotations

import torch

from bough.kernels.decode_step.grammar_table import GrammarPool, GrammarTable
from bough.kernels.decode_step.inputs import DecodeInputs
from bough.kernels.decode_step.select import Drawing
from bough.kernels.sampling.reference import SampleRows, SampleTables, likeliest, sample_rows


def torch_drawing() -> Drawing:
    """A `Drawing` for any device."""

    def draw(logits: torch.Tensor, rows: SampleRows, tables: SampleTables, out: torch.Tensor, *, filters: bool) -> None:
        sample_rows(logits, rows, tables, out)

    return Drawing(begin_decode, draw, end_decode, advance_states, likeliest)


def begin_decode(
    slots: torch.Tensor,
    last_token: torch.Tensor,
    position: torch.Tensor,
    page_table: torch.Tensor,
    page_size: int,
    inputs: DecodeInputs,
) -> None:
    """See step.begin_decode."""
    slot = slots.long()
    at = position[slot]
    inputs.tokens.copy_(last_token[slot])
    inputs.positions.copy_(at)
    inputs.draw_positions.copy_(at + 1)
    inputs.context_len.copy_(at + 1)
    inputs.write_slot.copy_(page_table[slot, at // page_size].long() * page_size + at % page_size)


def end_decode(slots: torch.Tensor, drawn: torch.Tensor, last_token: torch.Tensor, position: torch.Tensor) -> None:
    """See step.end_decode."""
    real = slots > 0
    slot = slots[real].long()
    last_token[slot] = drawn[real].clamp(min=0)
    position[slot] += 1


def advance(table: GrammarTable, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The states after one token each; integers [B] all.

    A state of -1 stays, and a token outside the vocabulary leads to it. A negative token is none: the state stays.
    """
    known = (states >= 0) & (tokens >= 0) & (tokens < len(table.token_class))
    token_class = table.token_class[torch.where(known, tokens, 0).long()]
    following = table.next_state[torch.where(known, states, 0).long(), token_class.long()]
    return torch.where(known, following, torch.where(tokens < 0, states, -1)).to(states.dtype)


def advance_states(
    pool: GrammarPool,
    *,
    states: torch.Tensor,
    places: torch.Tensor,
    state_row: torch.Tensor,
    tokens: torch.Tensor,
    mask_row: torch.Tensor,
) -> None:
    """See grammar_rows.advance_states."""
    has_grammar = state_row >= 0
    row = torch.where(has_grammar, state_row, 0).long()
    state = states[row]
    mask_base, class_base, next_base, num_classes = places[row].long().unbind(1)
    known = has_grammar & (state >= 0) & (tokens >= 0) & (tokens < pool.vocab_size)
    token_class = pool.token_class[torch.where(known, class_base + tokens, 0)]
    following = pool.next_state[torch.where(known, next_base + state * num_classes + token_class, 0)]
    state = torch.where(known, following, torch.where(tokens < 0, state, -1))
    states[row[has_grammar]] = state[has_grammar]
    mask_row.copy_(torch.where(has_grammar, torch.where(state >= 0, mask_base + state, 0), -1))
