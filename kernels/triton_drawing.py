"""The ends of a decode step and the draw between them, in Triton."""

from __future__ import annotations

import torch

from . import triton_step
from .sampling import SampleRows, SampleTables
from .step import DecodeInputs
from .triton_sample import SampleWorkspace, sample_rows


class TritonDrawing:
    """`drawing.Drawing`; batches of more rows than its workspace has are drawn in parts."""

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self._max_rows = max_rows
        self._workspace = SampleWorkspace.create(max_rows, vocab_size, device)

    def begin(
        self,
        slots: torch.Tensor,
        last_token: torch.Tensor,
        position: torch.Tensor,
        page_table: torch.Tensor,
        page_size: int,
        inputs: DecodeInputs,
    ) -> None:
        triton_step.begin_decode(slots, last_token, position, page_table, page_size, inputs)

    def draw(
        self, logits: torch.Tensor, rows: SampleRows, tables: SampleTables, out: torch.Tensor, *, filters: bool
    ) -> None:
        for start in range(0, len(logits), self._max_rows):
            part = slice(start, start + self._max_rows)
            sample_rows(logits[part], rows.select(part), tables, self._workspace, out[part], filters=filters)

    def end(self, slots: torch.Tensor, drawn: torch.Tensor, last_token: torch.Tensor, position: torch.Tensor) -> None:
        triton_step.end_decode(slots, drawn, last_token, position)
