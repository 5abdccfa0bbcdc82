"""Inputs of attention kernels: sequences over shuffled pages, some sharing prefixes; and what they are to give."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ....kernels.attention.interface import AttentionBatch, Int32
from ....kernels.attention.plan.shared_reads import find_shared
from ....kernels.attention.reference import ragged_attention
from ..roofline import Heads
from .problem import poison

PAGE_SIZE = 16

_NOBODYS = 1e4
"""In slots of no sequence. Not NaN: some peers multiply what lies past the end of a page by a weight of 0."""

Path = Sequence[tuple[Hashable, int]]
"""One sequence, root first: (name of a segment, its tokens). Sequences that name the same segment share its pages."""


@dataclass(frozen=True)
class AttentionInputs:
    """One launch. `batch` says on the host what `page_table` and `context_len` hold on the device.

    q, out          [T, H, D]          `num_queries` tokens for each of B sequences, their newest
    keys, values    [num_slots, G, D]  slots that no sequence has hold numbers that would ruin a result
    page_table      [B, P] int32
    context_len     [B] int32          queries included
    """

    batch: AttentionBatch
    num_queries: int
    q: torch.Tensor
    out: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    page_table: torch.Tensor
    context_len: torch.Tensor

    @property
    def scale(self) -> float:
        return 1.0 / math.sqrt(self.q.shape[-1])

    @property
    def paged(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values as [num_pages, page_size, G, D]."""
        shape = (-1, PAGE_SIZE, *self.keys.shape[1:])
        return self.keys.view(shape), self.values.view(shape)


def plain_paths(lengths: Sequence[int]) -> list[Path]:
    """Sequences that share nothing."""
    return [[(index, length)] for index, length in enumerate(lengths)]


def distinct_tokens(paths: Sequence[Path]) -> int:
    return sum({name: length for path in paths for name, length in path}.values())


def make_inputs(
    paths: Sequence[Path], heads: Heads, *, device: str, dtype: torch.dtype, seed: int, num_queries: int = 1
) -> AttentionInputs:
    """Random queries, keys and values for these sequences. Shared stretches must be whole pages."""
    shuffler = np.random.default_rng(seed)
    pages = _allocate(paths, shuffler)
    lengths = [sum(length for _, length in path) for path in paths]
    table = np.zeros((len(paths), max(map(len, pages))), np.int32)
    for row, own in enumerate(pages):
        table[row, : len(own)] = own
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=dtype, device=device, generator=generator)

    num_slots = (1 + max(int(own.max()) for own in pages)) * PAGE_SIZE
    keys, values = (normal(num_slots, heads.num_kv_heads, heads.head_dim) for _ in range(2))
    num_tokens = num_queries * len(paths)
    q = normal(num_tokens, heads.num_heads, heads.head_dim)
    for own, length in zip(pages, lengths, strict=True):
        if length % PAGE_SIZE:
            unwritten = slice(int(own[-1]) * PAGE_SIZE + length % PAGE_SIZE, (int(own[-1]) + 1) * PAGE_SIZE)
            keys[unwritten] = values[unwritten] = _NOBODYS
    keys[:PAGE_SIZE] = values[:PAGE_SIZE] = _NOBODYS  # page 0
    slots = [_slots(own)[length - num_queries : length] for own, length in zip(pages, lengths, strict=True)]
    context_len = np.array(lengths, np.int32)
    batch = AttentionBatch(
        query_start=np.arange(0, num_tokens + 1, num_queries, dtype=np.int32),
        context_len=context_len,
        page_table=table,
        write_slot=np.concatenate(slots),
        shared=find_shared(pages) if any(len(path) > 1 for path in paths) else (),
    )
    return AttentionInputs(
        batch=batch,
        num_queries=num_queries,
        q=q,
        out=poison(torch.empty_like(q)),
        keys=keys,
        values=values,
        page_table=torch.from_numpy(table).to(device),
        context_len=torch.from_numpy(context_len).to(device),
    )


def _allocate(paths: Sequence[Path], shuffler: np.random.Generator) -> list[Int32]:
    """Page ids of each sequence, in no order, from 1 on."""
    counts: dict[Hashable, int] = {}
    for path in paths:
        for name, length in path:
            counts[name] = -(-length // PAGE_SIZE)
    ids = 1 + shuffler.permutation(sum(counts.values())).astype(np.int32)
    starts = dict(zip(counts, np.cumsum([0, *counts.values()])[:-1].tolist(), strict=True))
    owned = {name: ids[starts[name] : starts[name] + count] for name, count in counts.items()}
    for path in paths:
        if any(length % PAGE_SIZE for _, length in path[:-1]):
            raise ValueError("a shared segment must be whole pages")
    return [np.concatenate([owned[name] for name, _ in path]) for path in paths]


def _slots(pages: Int32) -> np.ndarray[Any, np.dtype[np.int64]]:
    return (pages.astype(np.int64)[:, None] * PAGE_SIZE + np.arange(PAGE_SIZE)).reshape(-1)


def reference(inputs: AttentionInputs) -> torch.Tensor:
    """Attention of one sequence after another, in float32 (float64 for float32 inputs)."""
    wide = torch.float64 if inputs.q.dtype == torch.float32 else torch.float32
    outs = []
    for row, length in enumerate(inputs.batch.context_len.tolist()):
        slots = torch.from_numpy(_slots(inputs.batch.page_table[row])[:length]).to(inputs.q.device)
        q = inputs.q[row * inputs.num_queries : (row + 1) * inputs.num_queries]
        keys, values = inputs.keys[slots].to(wide), inputs.values[slots].to(wide)
        outs.append(ragged_attention(q.to(wide), keys, values, scale=inputs.scale))
    return torch.cat(outs)
