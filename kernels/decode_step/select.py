"""Decode steps around the model: fetches its input tokens, draws the next ones, and stores them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from ..sampling.reference import SampleRows, SampleTables
from .inputs import DecodeInputs

Likeliest = Callable[[torch.Tensor, int], torch.Tensor]
"""Finds the likeliest tokens of rows of logits, as reference.likeliest does; waits for nothing."""


class DrawRows(Protocol):
    """Draws a token from each row of logits, as reference.sample_rows does; waits for nothing."""

    def __call__(
        self, logits: torch.Tensor, rows: SampleRows, tables: SampleTables, out: torch.Tensor, *, filters: bool
    ) -> None:
        """Without `filters` no row has top-k, top-p or min-p."""


@dataclass(frozen=True)
class Drawing:
    """One implementation of a decode step: its ends (step.begin_decode, step.end_decode), the draw,
    grammar_rows.advance_states, and reference.likeliest."""

    begin: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, DecodeInputs], None]
    draw: DrawRows
    end: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]
    advance: Callable[..., None]
    likeliest: Likeliest


def triton_drawing(device: torch.device, max_rows: int, vocab_size: int) -> Drawing:
    """In Triton, with a workspace for `max_rows` rows of logits: more are drawn in parts."""
    from ..sampling import likeliest as triton_likeliest
    from ..sampling import sample as triton_sample
    from . import grammar_rows as triton_grammar
    from . import step as triton_step

    workspace = triton_sample.SampleWorkspace.create(max_rows, vocab_size, device)

    def draw(logits: torch.Tensor, rows: SampleRows, tables: SampleTables, out: torch.Tensor, *, filters: bool) -> None:
        for start in range(0, len(logits), max_rows):
            part = slice(start, start + max_rows)
            triton_sample.sample_rows(logits[part], rows.select(part), tables, workspace, out[part], filters=filters)

    return Drawing(
        triton_step.begin_decode,
        draw,
        triton_step.end_decode,
        triton_grammar.advance_states,
        triton_likeliest.likeliest,
    )
