"""Log-probabilities of tokens that decode steps draw on the device, by the formulas of torch_sampler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ...kernels.decode_step.select import Likeliest
from ...kernels.sampling.adjusted import adjust_rows
from ...kernels.sampling.reference import SampleRows, SampleTables
from ...kernels.staging import upload
from ..protocol.request import TokenLogprob
from ..protocol.sampling_params import MAX_LOGPROBS
from ..sampler.rows import Draws
from ..sampler.torch_sampler import log_sum
from .runner import DrawSpec

_GROWTH = 4
"""Ratio of successive sizes for which graphs are captured."""

_BLOCK = 16
"""Rows computed at once: intermediate results take the memory of several copies of their logits."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Logits of the scored rows before the draw, which may change the tables.

    Lines are float32 [N, V], sums (see log_sum) float64 [N, 1]; `final`: after penalties, bias and mask.
    """

    raw: torch.Tensor
    raw_sum: torch.Tensor
    final: torch.Tensor
    final_sum: torch.Tensor


class DeviceScores:
    """Tensors at fixed addresses for graphs, for up to R rows that request log-probabilities.

    values   float64 [R, 2 + 2 K], for each row: log-probability of the drawn token, and that after penalties, bias and
             mask; ids of the K likeliest tokens, and their log-probabilities
    """

    def __init__(
        self,
        max_num_seqs: int,
        vocab_size: int,
        device: torch.device,
        likeliest: Likeliest,
    ) -> None:
        self._likeliest = likeliest
        self._width = min(MAX_LOGPROBS, vocab_size)
        self.values = torch.zeros(max_num_seqs, 2 + 2 * self._width, dtype=torch.float64, device=device)
        self._rows = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self._seated: list[int] = []

    def seat(self, rows: list[int], size: int) -> int:
        """Sets the scored rows of a step of `size`. Returns the number to compute: some may be repeated, harmlessly."""
        if not rows:
            return 0
        count = 1
        while count < len(rows):
            count *= _GROWTH
        count = min(count, size)
        rows = rows + rows[:1] * (count - len(rows))
        if rows != self._seated:
            (sent,) = upload(self._rows.device, np.array(rows, np.int64))
            self._rows[:count].copy_(sent)
            self._seated = rows
        return count

    def begin(self, count: int, logits: torch.Tensor, rows: SampleRows, tables: SampleTables) -> Lines:
        """Reads the first `count` scored rows of `logits` [B, V], as computed by the model, before a token is drawn.

        With biases there are counts too.
        """
        index = self._rows[:count]
        raw = logits.index_select(0, index).float()
        raw_sum = torch.cat([log_sum(part) for part in torch.split(raw, _BLOCK)])
        if tables.counts is None and tables.mask is None:
            return Lines(raw, raw_sum, raw, raw_sum)
        final = torch.empty_like(raw)
        final_sum = torch.empty_like(raw_sum)
        for parts in zip(*(torch.split(lines, _BLOCK) for lines in (raw, index, final, final_sum)), strict=True):
            part, where, adjusted, adjusted_sum = parts
            adjusted.copy_(adjust_rows(part, where, rows, tables))
            adjusted_sum.copy_(log_sum(adjusted))
        return Lines(raw, raw_sum, final, final_sum)

    def end(self, lines: Lines, drawn: torch.Tensor) -> None:
        """Fills `values` for the tokens `drawn` int64 [B]."""
        count = len(lines.raw)
        named = drawn.index_select(0, self._rows[:count]).clamp(min=0)[:, None]
        top = self._likeliest(lines.raw, self._width)
        values = self.values[:count]
        values[:, 0:1] = lines.raw.gather(1, named) - lines.raw_sum
        values[:, 1:2] = lines.final.gather(1, named) - lines.final_sum
        values[:, 2 : 2 + self._width] = top
        values[:, 2 + self._width :] = lines.raw.gather(1, top) - lines.raw_sum


def asking(specs: Sequence[DrawSpec]) -> list[int]:
    """Returns the rows that request log-probabilities."""
    return [index for index, spec in enumerate(specs) if spec.params.logprobs is not None]


def fill(draws: Draws, specs: Sequence[DrawSpec], values: npt.NDArray[np.float64]) -> None:
    """Adds log-probabilities to the `draws` of a step, from `values` of its scored rows as in DeviceScores."""
    width = (values.shape[1] - 2) // 2
    ids = values[:, 2 : 2 + width].astype(np.int64).tolist()
    for line, index in enumerate(asking(specs)):
        most = specs[index].params.logprobs or 0
        logprob, final, *rest = values[line].tolist()
        top = tuple(zip(ids[line][:most], rest[width : width + most], strict=True))
        draws.logprobs[index] = TokenLogprob(max(draws.tokens[index], 0), logprob, top, final)
