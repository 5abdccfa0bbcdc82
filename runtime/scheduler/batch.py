"""A plan as flat arrays: what one forward pass reads."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...kernels.attention.interface import AttentionBatch, SharedPrefix
from .scheduler import Plan


@dataclass(frozen=True)
class Batch:
    """One forward pass over T tokens, R of whose positions need logits.

    tokens, positions   int64 [T]   a token drawn by a step that nobody has read yet is 0 here
    logit_rows          int64 [R]   indices into the T tokens
    fed                 int64 [F]   indices of the tokens that are not known here, only on the device
    fed_rows            int64 [F]   which work of the plan each belongs to: its last drawn token
    attention           page tables and lengths
    """

    tokens: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    logit_rows: npt.NDArray[np.int64]
    fed: npt.NDArray[np.int64]
    fed_rows: npt.NDArray[np.int64]
    attention: AttentionBatch


def build_batch(
    plan: Plan,
    page_size: int,
    table_row: npt.NDArray[np.int32] | None = None,
    shared: tuple[SharedPrefix, ...] = (),
) -> Batch:
    """Lays the plan's work out in order, one segment of query tokens a sequence, or several of one that ends as a tree.

    With `table_row`, where each work's page table is on the device, the page tables themselves are left out. `shared`
    is as AttentionBatch has it, of the plan's work.
    """
    tokens: list[int] = []
    fed: list[int] = []
    fed_rows: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    rows: list[int] = []
    tables: list[array[int] | npt.NDArray[np.int32]] = []
    query_start, context_len = [0], []
    for index, work in enumerate(plan.work):
        sequence = work.sequence
        assert sequence.lease is not None
        start, stop = work.start, work.stop
        offset = query_start[-1]
        known = sequence.tokens[start : stop - len(work.drafts)]
        tokens += known
        if len(known) < stop - len(work.drafts) - start:
            assert len(known) == stop - len(work.drafts) - start - 1, "only the last drawn token is on the device"
            fed.append(len(tokens))
            fed_rows.append(index)
            tokens.append(0)
        tokens += work.drafts
        pages = sequence.lease.pages[: -(-stop // page_size)]
        slots += _slots(pages, start, stop, page_size)
        if sequence.tree is None:
            query_start.append(offset + stop - start)
            context_len.append(stop)
            positions += range(start, stop)
            tables.append(pages)
        else:
            assert page_size == 1, "siblings would share a page"
            for low, high, path in sequence.tree.rows(start, stop):
                query_start.append(query_start[-1] + high - low)
                context_len.append(len(path))
                positions += range(len(path) - (high - low), len(path))
                tables.append(np.asarray(pages)[path])
        rows += range(work.logits_start - start + offset, work.logits_stop - start + offset)
    page_table = np.zeros((len(tables), max(map(len, tables)) if table_row is None else 0), dtype=np.int32)
    if table_row is None:
        for row, table in zip(page_table, tables, strict=True):
            row[: len(table)] = table
    return Batch(
        tokens=np.array(tokens, dtype=np.int64),
        positions=np.array(positions, dtype=np.int64),
        logit_rows=np.array(rows, dtype=np.int64),
        fed=np.array(fed, dtype=np.int64),
        fed_rows=np.array(fed_rows, dtype=np.int64),
        attention=AttentionBatch(
            np.array(query_start, dtype=np.int32),
            np.array(context_len, dtype=np.int32),
            page_table,
            np.array(slots, dtype=np.int64),
            shared,
            table_row,
        ),
    )


def _slots(pages: array[int], start: int, stop: int, page_size: int) -> Iterable[int]:
    """The slots of the cache that hold a sequence's tokens start .. stop."""
    if page_size == 1:
        return pages[start:stop]
    page, within = np.divmod(np.arange(start, stop), page_size)
    found: list[int] = (np.asarray(pages, dtype=np.int64)[page] * page_size + within).tolist()
    return found
