"""Draws from the logits of a pass on the device, each row as the host says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...kernels.decode_step.select import Drawing
from ...kernels.sampling.reference import SampleRows, SampleTables
from ...kernels.staging import upload
from ..protocol.sampling_params import SamplingParams
from ..sampler.rows import Draws, Row
from ..sampler.torch_sampler import penalise, sample
from .runner import Masks

_WORD = (1 << 64) - 1


def seed_bits(seeds: Sequence[int]) -> npt.NDArray[np.int64]:
    """The lowest 64 bits of each seed, as the kernels take them."""
    return np.array([seed & _WORD for seed in seeds], np.uint64).view(np.int64)


def sampling_numbers(params: SamplingParams) -> tuple[float, int, float, float]:
    """Temperature, top-k, top-p and min-p as the kernels take them: 0, 0, 1 and 0 are greedy, or off."""
    if params.greedy:
        return 0.0, 0, 1.0, 0.0
    return params.temperature, max(params.top_k or 0, 0), params.top_p, params.min_p


def draw_rows(
    drawing: Drawing, logits: torch.Tensor, rows: Sequence[Row], masks: Masks | None, off: SampleRows
) -> tuple[torch.Tensor, Draws | None]:
    """Tokens int64 [R] on the device, negative where none can be drawn; `logits` [R, V] may be overwritten.

    off    as many rows, for what of them is not used

    Draws are given as well where they had to be waited for: log-probabilities are put together on the host.
    """
    device = logits.device
    if any(row.params.logprobs is not None or row.target is not None for row in rows):
        draws = sample(logits.float(), rows, masks)
        (tokens,) = upload(device, np.array(draws.tokens, np.int64))
        return tokens, draws
    penalise(logits, rows)
    numbers = np.array([sampling_numbers(row.params) for row in rows], np.float64)
    bias_row, bias_ids, bias_values = _biases(rows, logits.shape[1])
    mask_row = np.array([-1 if row.masked is None else row.masked for row in rows], np.int32)
    tables: dict[str, npt.NDArray[Any]] = {} if masks is None else {"mask": masks}
    if len(bias_ids):
        tables |= {"bias_ids": bias_ids, "bias_values": bias_values}
    sent = upload(
        device,
        numbers[:, 0].astype(np.float32),
        numbers[:, 1].astype(np.int32),
        numbers[:, 2].astype(np.float32),
        numbers[:, 3].astype(np.float32),
        seed_bits([row.seed for row in rows]),
        np.array([row.position for row in rows], np.int64),
        mask_row,
        bias_row,
        *tables.values(),
    )
    sample_rows = replace(
        off,
        temperature=sent[0],
        top_k=sent[1],
        top_p=sent[2],
        min_p=sent[3],
        seed=sent[4],
        position=sent[5],
        mask_row=sent[6],
        bias_row=sent[7],
    )
    tokens = torch.empty(len(rows), dtype=torch.int64, device=device)
    found = SampleTables(**dict(zip(tables, sent[8:], strict=True)))
    drawing.draw(logits, sample_rows, found, tokens, filters=any(row.params.cuts for row in rows))
    return tokens, None


def _biases(
    rows: Sequence[Row], vocab_size: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """The table row of each row, -1 if it has no bias, and the table as SampleTables has it."""
    biases = [row.bias for row in rows]
    width = max(map(len, biases))
    bias_row = np.full(len(rows), -1, np.int32)
    with_bias = [index for index, bias in enumerate(biases) if bias]
    bias_row[with_bias] = np.arange(len(with_bias))
    ids = np.full((len(with_bias), width), vocab_size, np.int32)
    values = np.zeros((len(with_bias), width), np.float32)
    for line, index in enumerate(with_bias):
        pairs = sorted(biases[index].items())
        ids[line, : len(pairs)] = [token for token, _ in pairs]
        values[line, : len(pairs)] = [value for _, value in pairs]
    return bias_row, ids, values
