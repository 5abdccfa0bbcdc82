"""Shared reads: work lists on the device that read prefixes shared by sequences of a decode step only once."""

from __future__ import annotations

from collections.abc import Sequence as AbstractSequence

import numpy as np
import torch

from ...kernels.attention.interface import SharedPrefix
from ...kernels.attention.plan.padded_work import PaddedWork, write_padded
from ...kernels.attention.plan.shared_reads import SharingIndex, find_shared, order_by_prefix
from ...kernels.attention.plan.tree_plan import TreePlanner
from ...kernels.staging import upload
from ...radix import Lease
from ..scheduler.scheduler import Work
from .gpu_slots import Slot

_REPLAN_TOKENS = 128
"""Growth of sequences within one plan: the last item of each is open, but balanced for its initial length."""


_MIN_TOKENS = 64
"""Shorter common prefixes are ignored: no plan would read them separately."""


def arrange(works: AbstractSequence[Work], page_size: int) -> tuple[list[int], tuple[SharedPrefix, ...]]:
    """Returns an order that puts works with common cached pages side by side, and the groups in that order."""
    pages = []
    for work in works:
        lease = work.sequence.lease
        assert lease is not None
        pages.append(lease.pages[: lease.num_shared])
    order = order_by_prefix(pages).tolist()
    return order, find_shared([pages[index] for index in order], min_pages=_min_pages(page_size))


def _min_pages(page_size: int) -> int:
    return max(_MIN_TOKENS // page_size, 1)


class SharedReads:
    """Work list of the current decode rows, planned anew when they change or have grown."""

    def __init__(self, planner: TreePlanner, max_rows: int, page_size: int, device: torch.device) -> None:
        self._planner = planner
        self._device = device
        self._capacity = planner.capacity(max_rows)
        self._host = np.zeros(self._capacity.size, np.int32)
        self._buffer = torch.zeros(self._capacity.size, dtype=torch.int32, device=device)
        self._index: SharingIndex[int] = SharingIndex(min_pages=_min_pages(page_size))
        self._known: dict[int, tuple[Lease, int, int]] = {}  # by slot: lease, version of its pages, epoch
        self._rows: list[int] = []
        self._planned_at = 0
        self._work: PaddedWork[torch.Tensor] | None = None

    def nothing(self) -> PaddedWork[torch.Tensor]:
        """Forgets the plan; returns work without rows in the same tensors: the warm-up of a graph must read nothing."""
        self._buffer.zero_()
        self._rows = []
        return self._capacity.views(self._buffer)

    def update(self, works: AbstractSequence[Work], slots: AbstractSequence[Slot]) -> PaddedWork[torch.Tensor] | None:
        """Plans the rows' attention, in tensors at fixed addresses; returns None if nothing worthwhile is shared."""
        rows = [slot.index for slot in slots]
        changed = self._follow(works, rows)
        length = works[0].stop
        if not changed and rows == self._rows and 0 <= length - self._planned_at < _REPLAN_TOKENS:
            return self._work
        self._rows, self._planned_at = rows, length
        self._work = self._plan(works, rows)
        return self._work

    def _follow(self, works: AbstractSequence[Work], rows: list[int]) -> bool:
        """Updates the index with new and ended sequences and changed pages; returns True if anything changed.

        A new epoch is a change too: the sequence has become shorter, and a plan determines which keys need no mask.
        """
        changed = False
        gone = self._known.keys() - set(rows) if len(self._known) != len(rows) or rows != self._rows else ()
        for row in gone:
            self._index.leave(row)
            del self._known[row]
            changed = True
        for work, row in zip(works, rows, strict=True):
            lease = work.sequence.lease
            assert lease is not None
            known = self._known.get(row)
            version = lease.num_shared + lease.rewrites
            if known is not None and known[0] is lease and known[1:] == (version, work.epoch):
                continue
            # Its own pages are not shared.
            pages = lease.pages[: lease.num_shared]
            if known is None:
                self._index.join(row, pages)
            else:
                self._index.rewrite(row, pages)
            self._known[row] = lease, version, work.epoch
            changed = True
        return changed

    def _plan(self, works: AbstractSequence[Work], rows: list[int]) -> PaddedWork[torch.Tensor] | None:
        shared = self._index.shared()
        if not shared:
            return None
        place = {row: index for index, row in enumerate(rows)}
        order = np.array([place[row] for row in self._index.order()], np.int32)
        plan = self._planner.plan(
            np.arange(len(rows) + 1, dtype=np.int32),
            np.array([works[index].stop for index in order], np.int32),
            np.array([rows[index] for index in order], np.int32),
            shared,
            query_rows=order,
            capacity=self._capacity,
        )
        if not plan.num_levels:
            return None
        write_padded(plan.work, self._capacity, self._host)
        sent = self._capacity.limit_start
        (buffer,) = upload(self._device, self._host[:sent])
        self._buffer[:sent].copy_(buffer)
        return self._capacity.views(self._buffer)
