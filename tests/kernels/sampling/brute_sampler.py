"""Sampling by brute force, in float64 with a sort: what the sampler's tests compare with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from bough.kernels.sampling.reference import SampleRows, SampleTables

from ...support.sampling import uniform

MARGIN = 1e-5
"""Error of a sum of probabilities in float32, generously; borders closer than this have two right answers."""


@dataclass
class Draw:
    """One row; None: off. `counts` are times generated, `prompt` ids of the prompt, `allowed` the mask."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    position: int = 0
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    counts: dict[int, int] | None = None
    prompt: tuple[int, ...] = ()
    allowed: tuple[int, ...] | None = None
    bias: dict[int, float] = field(default_factory=dict)


def tensors(draws: list[Draw], vocab_size: int, device: str) -> tuple[SampleRows, SampleTables]:
    """The rows as the sampler takes them. Table rows are in the opposite order, so that none is row i by chance."""
    rows = SampleRows.greedy(len(draws), device)
    words, most = -(-vocab_size // 32), max(len(draw.bias) for draw in draws) + 2
    counts = torch.zeros(len(draws) + 1, vocab_size, dtype=torch.int16)
    mask = torch.zeros(len(draws) + 1, words, dtype=torch.int32)
    bias_ids = torch.full((len(draws) + 1, most), 2**31 - 1, dtype=torch.int32)
    bias_values = torch.full((len(draws) + 1, most), math.nan)
    for row, draw in enumerate(draws):
        at = len(draws) - row
        for name in ("temperature", "top_k", "top_p", "min_p", "position", "repetition", "frequency", "presence"):
            getattr(rows, name)[row] = getattr(draw, name)
        rows.seed[row] = draw.seed - 2**64 if draw.seed >= 2**63 else draw.seed
        rows.token_row[row] = at
        if draw.counts is not None:
            rows.count_row[row] = at
            for token, times in draw.counts.items():
                counts[at, token] = times
            for token in draw.prompt:
                counts[at, token] |= -(2**15)
        if draw.allowed is not None:
            rows.mask_row[row] = at
            bits = np.zeros(words * 32, dtype=np.uint8)
            bits[list(draw.allowed)] = 1
            bits[vocab_size:] = 1  # bits past the vocabulary mean nothing
            mask[at] = torch.from_numpy(np.packbits(bits, bitorder="little").view(np.int32))
        if draw.bias:
            rows.bias_row[row] = at
            for entry, token in enumerate(sorted(draw.bias)):
                bias_ids[at, entry], bias_values[at, entry] = token, draw.bias[token]
    last = torch.full((len(draws) + 1,), -5)
    tables: list[Any] = [table.to(device) for table in (counts, mask, bias_ids, bias_values, last)]
    return rows, SampleTables(*tables)


def adjusted(logits: torch.Tensor, draw: Draw) -> np.ndarray:
    """A row's logits after penalties, bias and mask, each step rounded to float32."""
    values = logits.float().cpu().numpy().copy()
    if draw.counts is not None:
        for token in range(len(values)):
            times = np.float32(draw.counts.get(token, 0))
            if times or token in draw.prompt:
                factor = np.float32(draw.repetition)
                values[token] = values[token] / factor if values[token] > 0 else values[token] * factor
            if times:
                values[token] -= np.float32(draw.frequency) * times + np.float32(draw.presence)
    for token, value in draw.bias.items():
        values[token] += np.float32(value)
    if draw.allowed is not None:
        forbidden = np.ones(len(values), dtype=bool)
        forbidden[list(draw.allowed)] = False
        values[forbidden] = -np.inf
    return values


def distribution(values: np.ndarray, draw: Draw, moved: float = 0.0) -> np.ndarray:
    """Probabilities after all filters; `moved`: the borders of top-p and min-p, by so much of the mass."""
    temperature = max(float(np.float32(draw.temperature)), 1e-30)
    weights = np.exp((values.astype(np.float64) - values.max()) / temperature)
    order = np.argsort(-values, kind="stable")
    if 0 < draw.top_k < len(values):
        weights[order[draw.top_k :]] = 0.0
    weights /= weights.sum()
    kept = np.ones(len(values), dtype=bool)
    if draw.top_p < 1.0:
        before = np.cumsum(weights[order]) - weights[order]
        kept[order] = before < float(np.float32(draw.top_p)) + moved
    kept &= weights >= float(np.float32(draw.min_p)) * (1.0 - moved) * weights.max()
    kept[order[0]] = True
    weights = np.where(kept, weights, 0.0)
    return weights / weights.sum()


def right_tokens(logits: torch.Tensor, draw: Draw) -> set[int]:
    """The token to be drawn, in vocabulary order; more than one where a border is within the margin."""
    if not bool(logits.isfinite().all()):
        return {-1}
    values = adjusted(logits, draw)
    if values.max() == -np.inf:
        return {-2}
    if draw.temperature == 0.0:
        return {int(values.argmax())}
    number = uniform(draw.seed, draw.position)
    found = set()
    for moved in (-MARGIN, 0.0, MARGIN):
        probabilities = distribution(values, draw, moved)
        reach = np.cumsum(probabilities)
        last = int(np.flatnonzero(probabilities > 0)[-1])
        for wanted in (number - MARGIN, number, number + MARGIN):
            found.add(min(int(np.searchsorted(reach, max(wanted, 0.0), side="right")), last))
    return found


def chi_square(tokens: list[int], probabilities: np.ndarray) -> bool:
    """True if the draws may well follow the probabilities: chi-square within 5 standard deviations, none impossible."""
    counts = np.bincount(tokens, minlength=len(probabilities))
    if (counts[probabilities == 0] > 0).any():
        return False
    expected = probabilities * len(tokens)
    usual = expected >= 5.0
    counts = np.append(counts[usual], counts[~usual].sum())
    expected = np.append(expected[usual], expected[~usual].sum())
    keep = expected > 0
    statistic = float(((counts[keep] - expected[keep]) ** 2 / expected[keep]).sum())
    freedom = int(keep.sum()) - 1
    return statistic <= freedom + 5.0 * math.sqrt(2.0 * max(freedom, 1))
