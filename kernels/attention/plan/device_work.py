"""Work items on the device: what `work.work_attention` and its reference take."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .work_list import WorkList


@dataclass(frozen=True)
class DeviceWork:
    """One launch of a `WorkList`, uploaded. Tensors are int32; their sizes are capacities, for a graph to hold them.

    items        [capacity, 8], columns as `work_list.WorkTiles` has them
    num_items    [1], how many of them count
    query_rows   [any], token of each query of each item
    query_limit  [T], position after the last key that token t may see; may be advanced in place between replays
    """

    items: torch.Tensor
    num_items: torch.Tensor
    query_rows: torch.Tensor
    query_limit: torch.Tensor


def upload(work: WorkList, device: torch.device | str) -> list[DeviceWork]:
    """One for each of `work.launches`, without room to spare."""
    rows = torch.from_numpy(work.query_rows).to(device)
    limit = torch.from_numpy(work.query_limit).to(device)
    return [
        DeviceWork(
            torch.from_numpy(tiles.items).to(device),
            torch.tensor([len(tiles.items)], dtype=torch.int32, device=device),
            rows,
            limit,
        )
        for tiles in work.launches
    ]
