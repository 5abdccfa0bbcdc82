"""What a decode step attends to, where everything about it is on the device already."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .padded_work import PaddedWork


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
