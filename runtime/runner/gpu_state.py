"""State on the device between steps: of each slot the last token, where it goes, and how it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from ...kernels.sampling.reference import SampleRows
from ...kernels.staging import upload
from .gpu_sampler import sampling_numbers, seed_bits
from .gpu_slots import Slot
from .runner import DrawSpec

_INACTIVE = -1.0
"""The temperature of slot 0, by which the sampler knows a padding row."""


class DeviceState:
    """Vectors over the slots. The host writes an entry when a sequence comes or its course was changed; a decode step
    advances all entries of its rows by itself."""

    def __init__(self, num_slots: int, device: torch.device) -> None:
        self.device = device
        self.last_token = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self.position = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self._seed = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self._top_k = torch.zeros(num_slots, dtype=torch.int32, device=device)
        self._floats = torch.zeros(3, num_slots, dtype=torch.float32, device=device)  # temperature, top_p, min_p
        self._floats[0] = _INACTIVE

    def put(self, slots: Sequence[Slot], tokens: Sequence[int], positions: Sequence[int]) -> None:
        """Sets the last tokens and where they go."""
        index = np.array([slot.index for slot in slots], np.int64)
        where, token, position = upload(self.device, index, np.array(tokens, np.int64), np.array(positions, np.int64))
        self.last_token.index_copy_(0, where, token)
        self.position.index_copy_(0, where, position)

    def put_specs(self, slots: Sequence[Slot], specs: Sequence[DrawSpec]) -> None:
        """Sets how tokens are drawn."""
        index = np.array([slot.index for slot in slots], np.int64)
        seed = seed_bits([spec.seed for spec in specs])
        numbers = [sampling_numbers(spec.params) for spec in specs]
        top_k = np.array([top_k for _, top_k, _, _ in numbers], np.int32)
        floats = np.array([(t, top_p, min_p) for t, _, top_p, min_p in numbers], np.float32).T
        where, seeds, top_ks, values = upload(self.device, index, seed, top_k, np.ascontiguousarray(floats))
        self._seed.index_copy_(0, where, seeds)
        self._top_k.index_copy_(0, where, top_ks)
        self._floats.index_copy_(1, where, values)

    def sample_rows(self, slots: torch.Tensor, draw_positions: torch.Tensor, off: SampleRows) -> SampleRows:
        """Returns sampling parameters of the sequences in `slots` int64 [B]; `off` has what is not used, for B rows."""
        floats = self._floats.index_select(1, slots)
        return replace(
            off,
            temperature=floats[0],
            top_k=self._top_k.index_select(0, slots),
            top_p=floats[1],
            min_p=floats[2],
            seed=self._seed.index_select(0, slots),
            position=draw_positions,
        )
