"""Slots of the device: a row of the page table, of the last tokens and of the sampling parameters for each sequence."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch

from ...kernels.decode_step.grammar_table import TablePlace
from ...kernels.sampling.reference import SampleRows
from ...kernels.staging import upload
from ...radix import Lease
from ..sampler.torch_sampler import sampling_numbers, seed_bits
from ..scheduler.scheduler import Sequence
from .runner import DrawSpec

Int32 = npt.NDArray[np.int32]


@dataclass(eq=False, slots=True)
class Slot:
    """The device's state of one sequence, as known to the host.

    position   position of the last drawn token, if that token and its position are on the device; -1 otherwise
    epoch      epoch of the sequence at that time
    spec       sampling parameters that were sent
    place      place of its constraint's table that was sent, with the state; None: it has no constraint
    counted    epoch and number of the tokens in its line of counts; see DeviceAdjustments
    lease, rewrites, num_pages   pages that were sent
    """

    index: int
    position: int = -1
    epoch: int = -1
    spec: DrawSpec | None = None
    place: TablePlace | None = None
    counted: tuple[int, int] = (-1, 0)
    lease: Lease | None = field(default=None, repr=False)
    rewrites: int = 0
    num_pages: int = 0


class SlotTable:
    """Assigns a slot to each running sequence until it stops. Slot 0 is reserved for padding rows."""

    def __init__(self, num_sequences: int) -> None:
        self._slots: dict[Sequence, Slot] = {}
        self._free = list(range(num_sequences, 0, -1))

    def __len__(self) -> int:
        return len(self._slots)

    def find(self, sequence: Sequence) -> Slot | None:
        """Returns the slot of a sequence; None if it has none."""
        return self._slots.get(sequence)

    def assign(self, sequences: Iterable[Sequence]) -> list[Slot]:
        """Returns the slot of each sequence; sequences that no longer hold pages lose theirs.

        Raises RuntimeError if more sequences hold pages than there are slots.
        """
        slots = []
        for sequence in sequences:
            slot = self._slots.get(sequence)
            if slot is None:
                if not self._free:
                    self._reclaim()
                slot = self._slots[sequence] = Slot(self._free.pop())
            slots.append(slot)
        return slots

    def _reclaim(self) -> None:
        for sequence in [sequence for sequence in self._slots if sequence.lease is None]:
            self._free.append(self._slots.pop(sequence).index)
        if not self._free:
            raise RuntimeError(f"{len(self._slots)} sequences run, but there are no more slots")


def page_changes(sequences: AbstractSequence[Sequence], slots: AbstractSequence[Slot]) -> tuple[Int32, Int32, Int32]:
    """Returns entries (slot, column, page) of the device's page table that differ from the leases; marks them sent."""
    rows: list[int] = []
    columns: list[int] = []
    pages: list[int] = []
    for sequence, slot in zip(sequences, slots, strict=True):
        lease = sequence.lease
        assert lease is not None
        first = slot.num_pages if slot.lease is lease and slot.rewrites == lease.rewrites else 0
        stop = len(lease.pages)
        if first < stop:
            rows += [slot.index] * (stop - first)
            columns += range(first, stop)
            pages += lease.pages[first:]
        slot.lease, slot.rewrites, slot.num_pages = lease, lease.rewrites, stop
    return np.array(rows, np.int32), np.array(columns, np.int32), np.array(pages, np.int32)


_INACTIVE = -1.0
"""Temperature of slot 0, which marks a padding row for the sampler."""


class DeviceState:
    """Vectors over the slots. The host writes entries of new and rewound sequences; a decode step advances those of its
    rows by itself."""

    def __init__(self, num_slots: int, device: torch.device) -> None:
        self.device = device
        self.last_token = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self.position = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self._seed = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self._top_k = torch.zeros(num_slots, dtype=torch.int32, device=device)
        self._floats = torch.zeros(3, num_slots, dtype=torch.float32, device=device)  # temperature, top_p, min_p
        self._floats[0] = _INACTIVE

    def put(
        self, slots: AbstractSequence[Slot], tokens: AbstractSequence[int], positions: AbstractSequence[int]
    ) -> None:
        """Sets the last tokens and their positions."""
        index = np.array([slot.index for slot in slots], np.int64)
        where, token, position = upload(self.device, index, np.array(tokens, np.int64), np.array(positions, np.int64))
        self.last_token.index_copy_(0, where, token)
        self.position.index_copy_(0, where, position)

    def put_specs(self, slots: AbstractSequence[Slot], specs: AbstractSequence[DrawSpec]) -> None:
        """Sets the sampling parameters of slots."""
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
        """Returns sampling parameters of the sequences in `slots` int64 [B]; unused ones are those of `off`, B rows."""
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
