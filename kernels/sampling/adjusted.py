"""Logits after penalties, bias and mask, in torch, for log-probabilities of few rows; the sampler writes none.

Floor: reads and writes of R * V floats, some ten times over, and 1 to 5 us a launch.
"""

from __future__ import annotations

import torch

from .reference import SampleRows, SampleTables


def adjust_rows(lines: torch.Tensor, index: torch.Tensor, rows: SampleRows, tables: SampleTables) -> torch.Tensor:
    """Float32 [N, V] from `lines` [N, V], logits of the `rows` at `index` int64 [N]: what reference.adjust gives for
    each, to the bit.

    The number of operations does not depend on the rows, and none waits for the device.
    """
    lines = lines.float()
    if tables.counts is not None:
        seen = _table_rows(tables.counts, rows.count_row[index], 0).int()
        times = (seen & 0x7FFF).float()
        factor, frequency, presence = (
            column[index][:, None] for column in (rows.repetition, rows.frequency, rows.presence)
        )
        lines = torch.where(seen != 0, torch.where(lines > 0, lines / factor, lines * factor), lines)
        lines = torch.where(times > 0, lines - (frequency * times + presence), lines)
    if tables.bias_ids is not None:
        assert tables.bias_values is not None
        vocab_size = lines.shape[1]
        ids = _table_rows(tables.bias_ids, rows.bias_row[index], vocab_size)
        values = _table_rows(tables.bias_values, rows.bias_row[index], 0).where(ids < vocab_size, 0)
        lines = lines.scatter_add(1, ids.clamp(max=vocab_size - 1).long(), values)
    if tables.mask is not None:
        words = _table_rows(tables.mask, rows.mask_row[index], -1)
        bits = words[:, :, None] >> torch.arange(32, dtype=torch.int32, device=lines.device) & 1
        lines = lines.masked_fill(bits.flatten(1)[:, : lines.shape[1]] == 0, -torch.inf)
    return lines


def _table_rows(table: torch.Tensor, index: torch.Tensor, none: int) -> torch.Tensor:
    """Rows of `table` [S, N] at `index` int32 [R]; `none` in place of those at -1."""
    return table.index_select(0, index.clamp(min=0)).where((index >= 0)[:, None], none)
