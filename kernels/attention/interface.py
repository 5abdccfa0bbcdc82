"""Attention interface: ragged query tokens over paged keys and values.

Prefill, a chunk of it, decode and the verification of drafts are the same call: each sequence brings its newest
tokens as queries and attends over all its pages, causally.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # an engine on the CPU library needs no torch
    import torch

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class KVShape:
    """Geometry of the paged cache: [layers][2][num_pages, page_size, num_kv_heads, head_dim] of `dtype`."""

    num_layers: int
    num_pages: int
    page_size: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers, keys and values."""
        return self.page_size * self.num_kv_heads * self.head_dim * 2 * self.num_layers * self.dtype.itemsize


@dataclass(frozen=True)
class SharedPrefix:
    """Sequences `start .. stop` of the batch (half open) share their first `num_pages` pages."""

    start: int
    stop: int
    num_pages: int


@dataclass(frozen=True)
class AttentionBatch:
    """Inputs of attention in one forward pass; host arrays, B sequences, T query tokens in all.

    query_start   int32 [B + 1]  sequence b owns query tokens query_start[b] .. query_start[b + 1]
    context_len   int32 [B]      tokens of sequence b in the cache once this step's are written, its queries included
    page_table    int32 [B, P]   page ids in order; entries at and past ceil(context_len / page_size) are not read
    write_slot    int64 [T]      page * page_size + offset where each query token's key and value go
    shared        groups of neighbouring sequences with common leading pages; a hint, empty is right too. Groups nest
                  or are disjoint, outer ones first
    table_row     int32 [B]      for a backend that keeps a page table of its own: the row of it that each sequence
                                 has; `page_table` is [B, 0] then
    """

    query_start: Int32
    context_len: Int32
    page_table: Int32
    write_slot: npt.NDArray[np.int64]
    shared: tuple[SharedPrefix, ...] = field(default=())
    table_row: Int32 | None = None


@dataclass(frozen=True)
class HeadNorm:
    """RMSNorm of every query head and every key head before they are rotated, as Qwen3 has it. Weights [head_dim]."""

    query: torch.Tensor
    key: torch.Tensor
    eps: float


@dataclass(frozen=True)
class AttentionLayer:
    """Attention in one layer of a model: the same at every step, so that it is made once.

    index     of the layer's keys and values in the cache
    scale     scores are the products of queries and keys times this
    window    a query at position p sees keys p - window + 1 .. p only; None: all up to its own
    softcap   scores become softcap * tanh(score / softcap); None: they stay
    norm      of the heads that `run_qkv` finds in a projection's output
    """

    index: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    norm: HeadNorm | None = None


Rotation = tuple["torch.Tensor", "torch.Tensor"]
"""Cosines and signed sines of each token's angles, as `decoder.reference.rotate` takes them."""


class HeadAttention(Protocol):
    """Attends over a paged KV cache, given heads."""

    def run(self, layer: AttentionLayer, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Writes `k` and `v` to the cache, then attends.

            q        [T, num_heads, head_dim]
            k, v     [T, num_kv_heads, head_dim]
            returns  [T, num_heads, head_dim]

        Query head h reads key-value head h // (num_heads // num_kv_heads).
        """


class AttentionBackend(HeadAttention, Protocol):
    """Owns the paged KV cache. `plan` once a step, then `run` or `run_qkv` once a layer."""

    def plan(self, batch: AttentionBatch) -> None:
        """Prepares the device-side metadata of the step; every `run` until the next `plan` uses it."""

    def run_qkv(self, layer: AttentionLayer, qkv: torch.Tensor, rotation: Rotation | None) -> torch.Tensor:
        """`run` on one projection's output, with what comes between the two: head norm, then rotary positions.

        qkv        [T, (num_heads + 2 * num_kv_heads) * head_dim]: query heads, key heads, value heads
        rotation   None: the layer does not rotate
        returns    [T, num_heads, head_dim]
        """
