"""Quantised weights as checkpoints hand them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from ...kernels.linear.formats import QuantisedWeight


@dataclass(frozen=True)
class StoredWeight:
    """A quantised weight as a checkpoint has it.

    order         int64 [N]: the input feature that each column is for; None: in their order
    rounds_rows   the activations are rounded, too, row by row, where the device can do it
    """

    weight: QuantisedWeight
    order: torch.Tensor | None = None
    rounds_rows: bool = False


class QuantisedCheckpoint(Protocol):
    """A checkpoint with weights that can be read as they are stored."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See Checkpoint.shapes: those of the weights undone."""

    def read(self, name: str) -> torch.Tensor:
        """See Checkpoint.read: a weight undone."""

    def is_quantised(self, name: str) -> bool:
        """Tells whether `read_stored` has that tensor."""

    def read_stored(self, name: str, device: torch.device | str = "cpu") -> StoredWeight:
        """The weight, put in order on `device`, which takes far less time there if it is a GPU."""
