"""Logits to tokens, a row at a time in effect and all rows at once in fact: no row's draw depends on another's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from ..kernels.mask_logits import mask_logits_
from .request import TokenLogprob
from .sampling import SamplingParams

_CANDIDATES = 1024
"""Most likely tokens that top-p and min-p look at before they fall back to the whole vocabulary."""

_COLDEST = 1e-30
"""Temperatures below are taken as this one: float32 holds logits divided by it."""


@dataclass(frozen=True, slots=True)
class Row:
    """How one row of logits is drawn from.

    uniform      in [0, 1): the row's random number, that of (seed, position)
    counts       generated token id -> times, for frequency and presence penalties; read only
    seen         distinct prompt and generated ids, for the repetition penalty
    banned       ids not allowed here (ends of sequence before min_tokens)
    masked       the row of the mask ring that applies, or None
    target       a token whose log-probability is asked for instead of a draw (scoring)
    """

    params: SamplingParams
    uniform: float = 0.0
    seed: int = 0
    position: int = 0
    counts: Mapping[int, int] = field(default_factory=dict)
    seen: Sequence[int] = ()
    banned: Sequence[int] = ()
    masked: int | None = None
    target: int | None = None

    @property
    def bias(self) -> dict[int, float]:
        """What is added to the logits of single tokens: the request's own, and -inf for what is banned."""
        return {**(self.params.logit_bias or {}), **dict.fromkeys(self.banned, -math.inf)}


@dataclass(frozen=True, slots=True)
class Draws:
    """One entry a row: the token drawn, log-probabilities where asked for, and whether the row was not finite."""

    tokens: list[int]
    logprobs: list[TokenLogprob | None]
    poisoned: list[bool]


@torch.inference_mode()
def sample(logits: torch.Tensor, rows: Sequence[Row], masks: npt.NDArray[np.int32] | None) -> Draws:
    """Draws a token from each row of `logits` [R, V] float32, which is overwritten.

    `masks` int32 [M, ceil(V / 32)] holds the rows that `Row.masked` points into.
    """
    bad = ~torch.isfinite(logits.sum(dim=1))
    raw = _raw_logprobs(logits, rows)
    _adjust(logits, rows)
    masked = [(index, row.masked) for index, row in enumerate(rows) if row.masked is not None]
    if masked:
        assert masks is not None
        where = torch.tensor([index for index, _ in masked], device=logits.device)
        chosen = torch.from_numpy(masks[[row for _, row in masked]])
        mask_logits_(logits, chosen.to(logits.device), where)
    tokens = logits.argmax(dim=1)
    bad |= ~torch.isfinite(logits.gather(1, tokens[:, None])[:, 0])
    drawn = [index for index, row in enumerate(rows) if not row.params.greedy and row.target is None]
    drawn = [index for index in drawn if not bad[index]]
    if drawn:
        where = torch.tensor(drawn, device=logits.device)
        tokens[where] = _draw(logits[where], [rows[index] for index in drawn])
    asked = [index for index, row in enumerate(rows) if row.params.logprobs is not None and row.target is None]
    normaliser = (
        dict(zip(asked, torch.logsumexp(logits[torch.tensor(asked)], dim=1).tolist(), strict=True)) if asked else {}
    )
    result = tokens.tolist()
    logprobs: list[TokenLogprob | None] = [None] * len(rows)
    for index, (values, top) in raw.items():
        row = rows[index]
        token = result[index] if row.target is None else row.target
        final = float(logits[index, token]) - normaliser[index] if row.target is None else None
        logprobs[index] = TokenLogprob(token, float(values[token]), top, final)
    return Draws(result, logprobs, bad.tolist())


def _raw_logprobs(
    logits: torch.Tensor, rows: Sequence[Row]
) -> dict[int, tuple[torch.Tensor, tuple[tuple[int, float], ...]]]:
    """Log-probabilities of the model itself, [V] a row that asks, with its top alternatives."""
    asked = [index for index, row in enumerate(rows) if row.params.logprobs is not None or row.target is not None]
    if not asked:
        return {}
    values = torch.log_softmax(logits[torch.tensor(asked)], dim=1)
    most = max(rows[index].params.logprobs or 0 for index in asked)
    top = values.topk(most, dim=1) if most else None
    found = {}
    for line, index in enumerate(asked):
        count = rows[index].params.logprobs or 0
        pairs: tuple[tuple[int, float], ...] = ()
        if top is not None and count:
            pairs = tuple(zip(top.indices[line, :count].tolist(), top.values[line, :count].tolist(), strict=True))
        found[index] = (values[line], pairs)
    return found


def _adjust(logits: torch.Tensor, rows: Sequence[Row]) -> None:
    """Penalties, bias and bans, in place; only rows that have any are touched."""
    penalise(logits, rows)
    for index, row in enumerate(rows):
        if row.target is None and (bias := row.bias):
            line = logits[index]
            ids = torch.tensor(list(bias), device=line.device)
            line[ids] += torch.tensor(list(bias.values()), dtype=line.dtype, device=line.device)


def penalise(logits: torch.Tensor, rows: Sequence[Row]) -> None:
    """Repetition, frequency and presence penalties on `logits` [R, V], in place."""
    for index, row in enumerate(rows):
        params = row.params
        if row.target is not None:
            continue
        line = logits[index]
        if params.repetition_penalty != 1.0 and row.seen:
            ids = torch.tensor(row.seen, device=line.device)
            values = line[ids]
            line[ids] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
        if (params.frequency_penalty or params.presence_penalty) and row.counts:
            ids = torch.tensor(list(row.counts), device=line.device)
            times = torch.tensor(list(row.counts.values()), dtype=line.dtype, device=line.device)
            line[ids] -= params.frequency_penalty * times + params.presence_penalty


def _draw(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """One token id a row, by inversion of the cumulative distribution at the row's uniform number."""
    # The largest becomes 0 first, so that a temperature next to 0 is greedy and does not overflow.
    temperatures = torch.tensor([max(row.params.temperature, _COLDEST) for row in rows], device=logits.device)[:, None]
    scaled = (logits.float() - logits.amax(dim=1, keepdim=True)) / temperatures
    plain = [i for i, row in enumerate(rows) if not _filters(row.params)]
    filtered = [i for i, row in enumerate(rows) if _filters(row.params)]
    tokens = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    if plain:
        probabilities = torch.softmax(scaled[plain], dim=1)
        tokens[plain] = _invert(probabilities, [rows[i] for i in plain])
    for i in filtered:  # candidate counts differ, so each row has its own width
        tokens[i] = _draw_filtered(scaled[i], rows[i])
    return tokens


def _filters(params: SamplingParams) -> bool:
    return bool(params.top_k and params.top_k > 0) or params.top_p < 1.0 or params.min_p > 0.0


def _invert(probabilities: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """First index at which the cumulative probability [R, C] exceeds the row's uniform number times the total."""
    cumulative = probabilities.double().cumsum(dim=1)
    uniform = torch.tensor([row.uniform for row in rows], dtype=torch.float64, device=cumulative.device)
    wanted = uniform * cumulative[:, -1]
    index = torch.searchsorted(cumulative, wanted[:, None], right=True)[:, 0]
    # A product rounded up to the total itself falls on the last token that has any probability.
    last = probabilities.shape[1] - 1 - probabilities.flip(1).gt(0).int().argmax(dim=1)
    return torch.minimum(index, last)


def _draw_filtered(scaled: torch.Tensor, row: Row) -> int:
    """Top-k, then top-p (of what top-k left), then min-p, likeliest tokens first."""
    params = row.params
    size = scaled.shape[0]
    keep = params.top_k if params.top_k and params.top_k > 0 else size
    normaliser = torch.logsumexp(scaled, dim=0)
    values, ids = scaled.topk(min(keep if keep < size else _CANDIDATES, size))
    probabilities = torch.exp(values - normaliser)
    if len(ids) < min(keep, size) and not _decided(probabilities, params):
        values, ids = scaled.topk(size)
        probabilities = torch.exp(values - normaliser)
    if keep < size:
        probabilities = probabilities / probabilities.sum()
    chosen = torch.ones_like(probabilities, dtype=torch.bool)
    if params.top_p < 1.0:
        before = probabilities.double().cumsum(dim=0) - probabilities
        chosen &= before < params.top_p
    if params.min_p > 0.0:
        chosen &= probabilities >= params.min_p * probabilities[0]
    chosen[0] = True
    return int(ids[_invert((probabilities * chosen)[None], [row])[0]])


def _decided(probabilities: torch.Tensor, params: SamplingParams) -> bool:
    """True if no token past these candidates can pass top-p or min-p."""
    return bool(probabilities.sum() >= params.top_p) or bool(probabilities[-1] < params.min_p * probabilities[0])
