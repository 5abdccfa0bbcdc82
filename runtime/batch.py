"""A plan as flat arrays: what one forward pass reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..kernels.attention import AttentionBatch, SharedPrefix
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
    """Lays the plan's work out in order, one stretch of query tokens a sequence, or several of one that ends as a tree.

    With `table_row`, where each work's page table is on the device, the page tables themselves are left out. `shared`
    is as AttentionBatch has it, of the plan's work.
    """
    tokens: list[int] = []
    fed: list[int] = []
    fed_rows: list[int] = []
    positions, slots, rows, tables = [], [], [], []
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
        table = np.array(sequence.lease.pages[: -(-stop // page_size)], dtype=np.int32)
        position = np.arange(start, stop, dtype=np.int64)
        page, within = (position, 0) if page_size == 1 else np.divmod(position, page_size)
        slots.append(table[page].astype(np.int64) * page_size + within)
        if sequence.tree is None:
            query_start.append(offset + stop - start)
            context_len.append(stop)
            positions.append(position)
            tables.append(table)
        else:
            assert page_size == 1, "siblings would share a page"
            for low, high, path in sequence.tree.rows(start, stop):
                query_start.append(query_start[-1] + high - low)
                context_len.append(len(path))
                positions.append(np.arange(len(path) - (high - low), len(path), dtype=np.int64))
                tables.append(table[path])
        if work.logits_stop > work.logits_start:
            rows.append(np.arange(work.logits_start - start + offset, work.logits_stop - start + offset))
    page_table = np.zeros((len(tables), max(map(len, tables)) if table_row is None else 0), dtype=np.int32)
    if table_row is None:
        for row, table in zip(page_table, tables, strict=True):
            row[: len(table)] = table
    return Batch(
        tokens=np.array(tokens, dtype=np.int64),
        positions=np.concatenate(positions),
        logit_rows=np.concatenate(rows).astype(np.int64) if rows else np.empty(0, dtype=np.int64),
        fed=np.array(fed, dtype=np.int64),
        fed_rows=np.array(fed_rows, dtype=np.int64),
        attention=AttentionBatch(
            np.array(query_start, dtype=np.int32),
            np.array(context_len, dtype=np.int32),
            page_table,
            np.concatenate(slots),
            shared,
            table_row,
        ),
    )
