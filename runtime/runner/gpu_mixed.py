"""Passes of any mix of prompt chunks, drafts and single tokens as graphs, up to the size beyond which launch overhead
no longer matters.

A pass is padded to one of a few sizes. The results of padding tokens are not read, and their keys and values are not
stored.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ...kernels.attention.decode_rows import DeviceAttention
from ...kernels.attention.interface import Int32
from ...kernels.attention.plan.padded_work import PaddedWork, WorkCapacity, write_padded
from ...kernels.attention.plan.planner import WorkPlanner
from ...kernels.staging import upload
from ..models.model import Model
from .gpu_graphs import Replays
from .runner import Batch

SIZES = (16, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 2048)
"""Tokens of a graph. An eager pass takes the host half a millisecond a layer, as a graph one in all: a first token of a
model of 0.6 billion weights on an H200 came after 14 ms, and comes after 3 ms."""


def sizes_up_to(num_tokens: int) -> tuple[int, ...]:
    """Returns the sizes of graphs for passes of up to `num_tokens` tokens."""
    return SIZES[: 1 + sum(size < num_tokens for size in SIZES)]


@dataclass(frozen=True)
class _Place:
    """Attention of passes of one size: the work list's numbers on the host, and their tensors on the device."""

    capacity: WorkCapacity
    host: Int32
    buffer: torch.Tensor
    work: PaddedWork[torch.Tensor]


class MixedPasses:
    """Runs `model` over batches: those of up to `sizes[-1]` tokens as graphs, each padded to the next size.

    planner    planner of the graphs' attention; None: all batches run eagerly
    """

    def __init__(
        self,
        model: Model,
        attention: DeviceAttention,
        replays: Replays,
        planner: WorkPlanner | None = None,
        *,
        sizes: Sequence[int] = SIZES,
    ) -> None:
        self.model = model
        self.attention = attention
        self.replays = replays
        self._planner = planner
        self._device = device = attention.page_table.device
        self._tokens = torch.zeros(sizes[-1], dtype=torch.int64, device=device)
        self._positions = torch.zeros_like(self._tokens)
        self._write_slots = torch.full_like(self._tokens, -1)
        self._hidden: torch.Tensor | None = None
        self._places = {} if planner is None else {size: self._place(planner.capacity(size)) for size in sizes}

    def _place(self, capacity: WorkCapacity) -> _Place:
        buffer = torch.zeros(capacity.size, dtype=torch.int32, device=self._device)
        return _Place(capacity, np.zeros(capacity.size, np.int32), buffer, capacity.views(buffer))

    def warm_ups(self) -> Iterator[Callable[[], object]]:
        """Yields a run of each size on padding, the largest first, so that graphs exist before the first prompt."""
        for size in reversed(self._places):
            yield functools.partial(self._run, size)

    def forward(self, batch: Batch, feed: Callable[[torch.Tensor], None]) -> torch.Tensor:
        """Returns the model's last states of the batch's tokens, [T or more, hidden_size], valid until the next call.

        feed    writes the tokens that only the device knows to their places in [T or more]
        """
        size = self._placed(batch)
        if size is None:
            self.attention.plan(batch.attention)
            tokens, positions = upload(self._device, batch.tokens, batch.positions)
            feed(tokens)
            return self.model.forward(tokens, positions, self.attention)
        place, num_tokens = self._places[size], len(batch.tokens)
        slots = np.full(size, -1, np.int64)
        slots[:num_tokens] = batch.attention.write_slot
        tokens, positions, write_slots, work = upload(self._device, batch.tokens, batch.positions, slots, place.host)
        self._tokens[:num_tokens].copy_(tokens)
        self._positions[:num_tokens].copy_(positions)
        self._write_slots[:size].copy_(write_slots)
        place.buffer.copy_(work)
        feed(self._tokens)
        return self._run(size)

    def _placed(self, batch: Batch) -> int | None:
        """Writes the batch's attention to the place of its size, and returns that size.

        None: the batch is too large, its attention has too many parts, or each sequence has one token.
        """
        size = next((size for size in self._places if size >= len(batch.tokens)), None)
        if size is None or self._planner is None:
            return None
        place, attention = self._places[size], batch.attention
        assert attention.table_row is not None
        work = self._planner.plan(attention, attention.table_row)
        if work is None or not place.capacity.holds(work):
            return None
        write_padded(work, place.capacity, place.host)
        return size

    def _run(self, size: int) -> torch.Tensor:
        return self.replays.run(("mixed", size), lambda: self._pass(size))

    def _pass(self, size: int) -> torch.Tensor:
        self.attention.plan_work(self._write_slots[:size], self._places[size].work)
        hidden = self.model.forward(self._tokens[:size], self._positions[:size], self.attention)
        if self._hidden is None:
            self._hidden = hidden.new_empty(len(self._tokens), hidden.shape[1])
        return self._hidden[:size].copy_(hidden)
