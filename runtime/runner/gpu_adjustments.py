"""Penalties and biases on the device, by slot: counts of tokens, and numbers added to logits."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as AbstractSequence

import numpy as np
import numpy.typing as npt
import torch

from ...kernels.sampling.reference import SampleTables
from ...kernels.staging import upload
from ..protocol.sampling_params import MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS
from ..scheduler.scheduler import Work
from .gpu_slots import Slot
from .runner import DrawSpec

COUNT_BYTES = 128 << 20
"""Most bytes for counts of tokens: slots beyond these cannot have penalties on the device."""

_MAX_BIASES = MAX_LOGIT_BIAS + MAX_STOP_TOKEN_IDS + 32
"""Most biases of a sequence: its own, and those of the ends banned before min_tokens, the model's included."""

_MOST_TIMES = 0x7FFF
_IN_PROMPT = -0x8000

Int16 = npt.NDArray[np.int16]
Int64 = npt.NDArray[np.int64]


class DeviceAdjustments:
    """Tables of adjustments to logits before a draw, a line for each slot that has any.

    The host writes a line when a sequence arrives, or continues after a pass that did not count; the draws of decode
    steps count by themselves (`SampleTables.counts`), without the host knowing their tokens.
    """

    def __init__(
        self, num_slots: int, vocab_size: int, device: torch.device, *, count_bytes: int = COUNT_BYTES
    ) -> None:
        self.device = device
        self._vocab_size = vocab_size
        num_counted = min(num_slots, max(count_bytes // (2 * vocab_size), 1))
        self.tables = SampleTables(
            counts=torch.zeros(num_counted, vocab_size, dtype=torch.int16, device=device),
            bias_ids=torch.full((num_slots, _MAX_BIASES), vocab_size, dtype=torch.int32, device=device),
            bias_values=torch.zeros(num_slots, _MAX_BIASES, dtype=torch.float32, device=device),
        )
        self._penalties = torch.zeros(3, num_slots, dtype=torch.float32, device=device)
        self._penalties[0] = 1.0  # repetition; then frequency and presence
        self._rows = torch.full((2, num_slots), -1, dtype=torch.int32, device=device)  # of counts, and of biases
        self._adjusted: set[int] = set()  # slots with adjustments on the device

    def could_hold(self, spec: DrawSpec, slot: Slot | None) -> bool:
        """Returns False if the tables have no room for the adjustments of `spec` in the slot."""
        if len(spec.params.logit_bias or ()) + len(spec.banned) > _MAX_BIASES:
            return False
        assert self.tables.counts is not None
        return not spec.penalised or (slot is not None and slot.index < len(self.tables.counts))

    def put(self, slots: AbstractSequence[Slot], specs: AbstractSequence[DrawSpec]) -> None:
        """Sends penalties and biases for the slots that have any, or had some."""
        changed = [
            (slot.index, spec)
            for slot, spec in zip(slots, specs, strict=True)
            if spec.adjusts or slot.index in self._adjusted
        ]
        if not changed:
            return
        self._adjusted.update(index for index, spec in changed if spec.adjusts)
        biases = [(index, spec.bias) for index, spec in changed if spec.bias]
        penalties = [
            (each.repetition_penalty, each.frequency_penalty, each.presence_penalty)
            for each in (spec.params for _, spec in changed)
        ]
        rows = [(index if spec.penalised else -1, index if spec.bias else -1) for index, spec in changed]
        where, numbers, own, biased, ids, values = upload(
            self.device,
            np.array([index for index, _ in changed], np.int64),
            np.ascontiguousarray(np.array(penalties, np.float32).T),
            np.ascontiguousarray(np.array(rows, np.int32).T),
            np.array([index for index, _ in biases], np.int64),
            *self._lines([bias for _, bias in biases]),
        )
        self._penalties.index_copy_(1, where, numbers)
        self._rows.index_copy_(1, where, own)
        if biases:
            assert self.tables.bias_ids is not None and self.tables.bias_values is not None
            self.tables.bias_ids.index_copy_(0, biased, ids)
            self.tables.bias_values.index_copy_(0, biased, values)
        self._adjusted.difference_update(index for index, spec in changed if not spec.adjusts)

    def count(
        self, slots: AbstractSequence[Slot], works: AbstractSequence[Work], last_token: torch.Tensor, num_steps: int
    ) -> None:
        """Counts the tokens that the lines of `slots` lack, up to the one that each work begins with, which is in
        `last_token` int64 [S] if the host does not know it. Then `num_steps` steps follow.
        """
        begun: list[int] = []
        unknown: list[int] = []
        places: list[Int64] = []
        times: list[Int16] = []
        for slot, work in zip(slots, works, strict=True):
            sequence, stop = work.sequence, work.start + 1
            epoch, start = slot.counted
            if epoch != work.epoch or start > stop:
                begun.append(slot.index)
                start = 0
            known = sequence.tokens[start:stop]
            if start + len(known) < stop:
                assert start + len(known) == stop - 1, "only the last drawn token is on the device"
                unknown.append(slot.index)
            if known:
                tokens, counted = _counts(known, sequence.num_prompt - start)
                places.append(tokens + slot.index * self._vocab_size)
                times.append(counted)
            slot.counted = (work.epoch, stop + num_steps)
        if not (begun or places or unknown):
            return
        lines, at, added, slots_of = upload(
            self.device,
            np.array(begun, np.int64),
            np.concatenate(places) if places else np.empty(0, np.int64),
            np.concatenate(times) if times else np.empty(0, np.int16),
            np.array(unknown, np.int64),
        )
        assert self.tables.counts is not None
        if begun:
            self.tables.counts.index_fill_(0, lines, 0)
        if places:
            self._add(at, added)
        if unknown:
            self._add(slots_of * self._vocab_size + last_token.index_select(0, slots_of), torch.ones_like(slots_of))

    def sample_rows(self, slots: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns the fields of SampleRows that refer to the tables, for sequences in `slots` int32 [B]."""
        repetition, frequency, presence = self._penalties.index_select(1, slots)
        count_row, bias_row = self._rows.index_select(1, slots)
        return {
            "repetition": repetition,
            "frequency": frequency,
            "presence": presence,
            "count_row": count_row,
            "bias_row": bias_row,
        }

    def _add(self, places: torch.Tensor, times: torch.Tensor) -> None:
        """Adds `times` [N] at distinct `places` int64 [N] of the flat counts, as the sampler counts."""
        assert self.tables.counts is not None
        flat = self.tables.counts.view(-1)
        before, added = flat.index_select(0, places).int(), times.int()
        sums = ((before & _MOST_TIMES) + (added & _MOST_TIMES)).clamp(max=_MOST_TIMES)
        flat.index_copy_(0, places, (sums | ((before | added) & _IN_PROMPT)).short())

    def _lines(
        self, biases: AbstractSequence[Mapping[int, float]]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Returns lines of the bias tables."""
        ids = np.full((len(biases), _MAX_BIASES), self._vocab_size, np.int32)
        values = np.zeros((len(biases), _MAX_BIASES), np.float32)
        for line, bias in enumerate(biases):
            ids[line, : len(bias)], values[line, : len(bias)] = zip(*sorted(bias.items()), strict=True)
        return ids, values


def _counts(tokens: AbstractSequence[int], num_prompt: int) -> tuple[Int64, Int16]:
    """Returns the distinct `tokens`, the first `num_prompt` of which are prompt, and their entries in a line."""
    num_prompt = max(num_prompt, 0)
    ids, place = np.unique(np.array(tokens, np.int64), return_inverse=True)
    times = np.bincount(place[num_prompt:], minlength=len(ids)).clip(max=_MOST_TIMES)
    times[np.unique(place[:num_prompt])] += _IN_PROMPT
    return ids, times.astype(np.int16)
