"""Inputs of attention in a decode step that are already on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from .interface import AttentionBackend, Int32, KVShape
from .plan.padded_work import PaddedWork


@dataclass(frozen=True)
class DecodeRows:
    """B rows of one new token each; tensors whose contents may change from one replay of a graph to the next.

    table_row     int32 [B]            row of the backend's page table
    context_len   int32 [B]            tokens in the cache once this step's are written; 0: an unused row
    write_slot    int32 or int64 [B]   where each row's key and value go; negative: nowhere
    work          how rows with common prefixes are attended to together, by layers without a window; rows that it does
                  not name are left undefined there. Its query_rows are rows of this batch; its query_limit is not
                  read, `context_len` serves. None: each row by itself
    """

    table_row: torch.Tensor
    context_len: torch.Tensor
    write_slot: torch.Tensor
    work: PaddedWork[torch.Tensor] | None = None


class DeviceAttention(AttentionBackend, Protocol):
    """An attention backend that keeps the page table on its device, and plans decode steps there."""

    shape: KVShape
    page_table: torch.Tensor  # int32 [rows, columns]; row 0 is nobody's

    def set_pages(self, rows: Int32, columns: Int32, pages: Int32) -> None:
        """Writes page_table[rows[i], columns[i]] = pages[i] for every i; no place may come up twice."""

    def set_scales(self, k_scale: torch.Tensor, v_scale: torch.Tensor) -> None:
        """Sets what an 8-bit cache holds its keys and values divided by, float32 [num_layers, num_kv_heads] each."""

    def plan_decode(self, rows: DecodeRows) -> None:
        """Plans a step of one new token a row; nothing is read back, so that a graph can hold what follows."""

    def plan_work(self, write_slot: torch.Tensor, work: PaddedWork[torch.Tensor]) -> None:
        """Plans a pass of any shape, from tensors whose contents may change from one replay of a graph to the next.

        write_slot    int32 or int64 [T]   where each token's key and value go; negative: nowhere
        work          of rows of the backend's page table; tokens that it does not name are left undefined
        """
