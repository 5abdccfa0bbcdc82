"""A stand-in for an engine: sequences that grow by some tokens a step over pages they may share, on any backend."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch

from bough.kernels.attention.interface import AttentionBatch, KVShape
from bough.kernels.attention.plan.shared_reads import find_shared, order_by_prefix
from bough.kernels.attention.triton_backend import TritonAttention

from ..support.triton_interpreter import DEVICE
from .attention.oracle import ReferenceAttention

NAN = float("nan")


@dataclass
class Sequence:
    """`seed` stands for what comes after the shared tokens: equal sequences have equal queries, keys and values."""

    seed: int
    row: int  # of the backend's page table
    length: int = 0
    pages: list[int] = field(default_factory=list)


Work: TypeAlias = "list[tuple[Sequence, int]]"
"""Numbers of new tokens, by sequence."""


@dataclass
class Engine:
    """Keeps pages, and makes queries, keys and values that depend on a sequence's seed and the position alone."""

    shape: KVShape
    num_heads: int
    dtype: torch.dtype
    table_width: int = 12

    def __post_init__(self) -> None:
        self.sequences: list[Sequence] = []
        self._free = torch.randperm(self.shape.num_pages - 1, generator=torch.Generator().manual_seed(0)) + 1
        self._used = 0

    def add(self, seed: int, parent: Sequence | None = None) -> Sequence:
        """A new sequence; with a parent, it begins with the pages that the parent has filled."""
        sequence = Sequence(seed, len(self.sequences) + 1)
        if parent is not None:
            num_pages = parent.length // self.shape.page_size
            sequence.pages = parent.pages[:num_pages]
            sequence.length = num_pages * self.shape.page_size
        self.sequences.append(sequence)
        return sequence

    def step(self, work: Work, *, shared: bool = False, own_table: bool = False) -> AttentionBatch:
        """A batch in which each of these sequences brings so many new tokens.

        shared      sequences with common pages are put side by side (also in `work`), and told as groups
        own_table   the batch names rows of the backend's page table: see `write_table`
        """
        size = self.shape.page_size
        for sequence, num_new in work:
            while len(sequence.pages) * size < sequence.length + num_new:
                sequence.pages.append(int(self._free[self._used]))
                self._used += 1
        if shared:
            work[:] = [work[i] for i in order_by_prefix([array("i", sequence.pages) for sequence, _ in work])]
        table = np.full((len(work), self.table_width), 10**6, np.int32)
        slots = []
        for line, (sequence, num_new) in enumerate(work):
            table[line, : len(sequence.pages)] = sequence.pages
            slots += [
                sequence.pages[p // size] * size + p % size for p in range(sequence.length, sequence.length + num_new)
            ]
        return AttentionBatch(
            np.cumsum([0, *(num_new for _, num_new in work)]).astype(np.int32),
            np.array([sequence.length + num_new for sequence, num_new in work], np.int32),
            table[:, :0] if own_table else table,
            np.array(slots, np.int64),
            find_shared([array("i", sequence.pages) for sequence, _ in work]) if shared else (),
            np.array([sequence.row for sequence, _ in work], np.int32) if own_table else None,
        )

    def write_table(self, backend: TritonAttention) -> None:
        """All pages of all sequences."""
        rows = [np.full(len(s.pages), s.row, np.int32) for s in self.sequences]
        columns = [np.arange(len(s.pages), dtype=np.int32) for s in self.sequences]
        pages = [np.array(s.pages, np.int32) for s in self.sequences]
        backend.set_pages(np.concatenate(rows), np.concatenate(columns), np.concatenate(pages))

    def tokens(self, work: Work, layer: int) -> list[torch.Tensor]:
        """q, k and v of the step."""
        parts: list[list[torch.Tensor]] = [[], [], []]
        heads = (self.num_heads, self.shape.num_kv_heads, self.shape.num_kv_heads)
        for sequence, num_new in work:
            for position in range(sequence.length, sequence.length + num_new):
                chance = torch.Generator().manual_seed(sequence.seed * 10**6 + position * 10 + layer)
                for part, count in zip(parts, heads, strict=True):
                    part.append(torch.randn(count, self.shape.head_dim, generator=chance).to(self.dtype))
        return [torch.stack(part).to(DEVICE) for part in parts]

    def advance(self, work: Work) -> None:
        for sequence, num_new in work:
            sequence.length += num_new


def make_shape(page_size: int, *, num_kv_heads: int = 1, dtype: torch.dtype = torch.float32) -> KVShape:
    return KVShape(2, 4096 // page_size, page_size, num_kv_heads, 64, dtype)


def make_backend(shape: KVShape, **options: Any) -> TritonAttention:
    """A runner whose cache is poisoned where nothing has been written, but for the null page."""
    backend = TritonAttention(shape, DEVICE, max_num_seqs=15, max_model_len=1024, **options)
    for cache in (backend.keys, backend.values):
        cache[:, shape.page_size :] = NAN
    return backend


def make_reference(shape: KVShape) -> ReferenceAttention:
    return ReferenceAttention(shape, DEVICE)
