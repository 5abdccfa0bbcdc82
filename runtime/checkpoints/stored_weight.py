"""Quantised weights as stored in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from ...kernels.linear.formats import QuantisedWeight


@dataclass(frozen=True)
class StoredWeight:
    """A quantised weight as stored in a checkpoint.

    order         int64 [N]: input feature of each column; None: in order
    rounds_rows   activations are rounded too, row by row, where the device supports it
    """

    weight: QuantisedWeight
    order: torch.Tensor | None = None
    rounds_rows: bool = False


class QuantisedCheckpoint(Protocol):
    """A checkpoint with weights that can be read as they are stored."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See Checkpoint.shapes: those of the dequantised weights."""

    def read(self, name: str) -> torch.Tensor:
        """See Checkpoint.read: dequantises a weight."""

    def is_quantised(self, name: str) -> bool:
        """Returns True if `read_stored` has the tensor."""

    def read_stored(self, name: str, device: torch.device | str = "cpu") -> StoredWeight:
        """Returns the weight, converted on `device`, which is much faster on a GPU."""
