"""Planner of attention: chooses for a batch between single rows, a work list, and a tree of shared prefixes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ...processor import num_processors
from ..interface import AttentionBatch, Int32, KVShape
from .padded_work import WorkCapacity
from .tree_cost import H200, HeadShape
from .tree_plan import TreePlanner
from .work_list import FIXED_BLOCK_M, MAX_TURNS, PROGRAMS_PER_PROCESSOR, WorkList, largest_block_m, plan_extend


class WorkPlanner:
    """Plans for one model's layers on one device.

    fixed_split   tokens, see plan_extend: results shall not depend on the batch, and nothing is shared. None: whatever
                  is fastest
    """

    def __init__(
        self,
        shape: KVShape,
        num_heads: int,
        dtype: torch.dtype,
        device: torch.device | str,
        *,
        fixed_split: int | None = None,
    ) -> None:
        self._shape = shape
        self._group = num_heads // shape.num_kv_heads
        self._fixed_split = fixed_split
        self._max_block_m = largest_block_m(shape.head_dim, dtype.itemsize)
        self._num_processors = num_processors(device)
        self.num_programs = {
            block_m: self._num_processors * programs
            for block_m, programs in PROGRAMS_PER_PROCESSOR.items()
            if block_m <= self._max_block_m
        }
        machine = replace(H200, num_sms=self._num_processors)
        head = HeadShape(shape.page_size, self._group, shape.num_kv_heads, shape.head_dim, shape.dtype.itemsize)
        self.tree = TreePlanner(head, machine, self.num_programs)

    def plan(self, batch: AttentionBatch, table_row: Int32) -> WorkList | None:
        """The batch's work list; None: each sequence has one query and is attended to by itself.

        table_row   int32 [B], row of the page table that each sequence has
        """
        if self._fixed_split is None:
            if batch.shared:
                tree = self.tree.plan(batch.query_start, batch.context_len, table_row, batch.shared)
                if tree.num_levels:
                    return tree.work
            if (np.diff(batch.query_start) == 1).all():
                return None
        return plan_extend(
            batch.query_start,
            batch.context_len,
            table_row,
            group=self._group,
            num_kv_heads=self._shape.num_kv_heads,
            page_size=self._shape.page_size,
            num_programs=self._num_processors,
            max_block_m=self._max_block_m,
            fixed_split=self._fixed_split,
        )

    def capacity(self, num_queries: int) -> WorkCapacity:
        """Returns a capacity for the work of batches of so many queries; lists of many partial results may not fit."""
        sizes = (FIXED_BLOCK_M,) if self._fixed_split is not None else tuple(sorted(self.num_programs, reverse=True))
        num_splits = {
            size: -(-MAX_TURNS * self._num_processors * PROGRAMS_PER_PROCESSOR[size] // self._shape.num_kv_heads)
            for size in sizes
        }
        num_partials = max(min(num_queries, size // self._group) * count for size, count in num_splits.items())
        return WorkCapacity(sizes, num_queries, num_queries + max(num_splits.values()), num_queries + num_partials)
