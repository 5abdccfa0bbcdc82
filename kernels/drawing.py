"""What a decode step does around the model: fetches its tokens, draws the next ones, and keeps them."""

from __future__ import annotations

from typing import Protocol

import torch

from . import step
from .sampling import SampleRows, SampleTables, sample_rows
from .step import DecodeInputs


class Drawing(Protocol):
    """The ends of a decode step, see kernels.step, and the draw between them. Nothing waits for the device."""

    def begin(
        self,
        slots: torch.Tensor,
        last_token: torch.Tensor,
        position: torch.Tensor,
        page_table: torch.Tensor,
        page_size: int,
        inputs: DecodeInputs,
    ) -> None: ...

    def draw(
        self, logits: torch.Tensor, rows: SampleRows, tables: SampleTables, out: torch.Tensor, *, filters: bool
    ) -> None:
        """See sampling.sample_rows. Without `filters` no row has top-k, top-p or min-p."""

    def end(
        self, slots: torch.Tensor, drawn: torch.Tensor, last_token: torch.Tensor, position: torch.Tensor
    ) -> None: ...


class TorchDrawing:
    """The reference, for any device."""

    def begin(
        self,
        slots: torch.Tensor,
        last_token: torch.Tensor,
        position: torch.Tensor,
        page_table: torch.Tensor,
        page_size: int,
        inputs: DecodeInputs,
    ) -> None:
        step.begin_decode(slots, last_token, position, page_table, page_size, inputs)

    def draw(
        self, logits: torch.Tensor, rows: SampleRows, tables: SampleTables, out: torch.Tensor, *, filters: bool
    ) -> None:
        sample_rows(logits, rows, tables, out)

    def end(self, slots: torch.Tensor, drawn: torch.Tensor, last_token: torch.Tensor, position: torch.Tensor) -> None:
        step.end_decode(slots, drawn, last_token, position)


def select_drawing(device: torch.device, max_rows: int, vocab_size: int, *, triton: bool) -> Drawing:
    """The drawing for a device, with its workspace for `max_rows` rows of logits."""
    if not triton:
        return TorchDrawing()
    from .triton_drawing import TritonDrawing

    return TritonDrawing(max_rows, vocab_size, device)
