"""Sampler in torch, for logits on any device: rows become tensors for kernels/sampling, which draws the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...kernels.decode_step.select import DrawRows, Likeliest
from ...kernels.sampling.mask_logits import mask_logits_
from ...kernels.sampling.reference import COLDEST, SampleRows, SampleTables, likeliest, sample_rows
from ...kernels.staging import upload
from ..protocol.request import TokenLogprob
from ..protocol.sampling_params import SamplingParams
from .rows import Draws, Logits, Masks, Row

_WORD = (1 << 64) - 1


class TorchSampler:
    """`Sampler` without the CPU library: the reference for the others."""

    @torch.inference_mode()
    def sample(self, logits: Logits, rows: Sequence[Row], masks: Masks | None) -> Draws:
        """See Sampler."""
        tensor = torch.from_numpy(np.array(logits))
        tokens, scores = draw_rows(_draw, tensor, rows, masks, SampleRows.greedy(len(rows), "cpu"))
        draws = to_draws(tokens.tolist())
        if scores is not None:
            scores.fill(draws, 0, scores.values.numpy())
        return draws


def _draw(logits: torch.Tensor, rows: SampleRows, tables: SampleTables, out: torch.Tensor, *, filters: bool) -> None:
    sample_rows(logits, rows, tables, out)


def to_draws(tokens: list[int]) -> Draws:
    """Returns draws for tokens alone; a negative one means that none could be drawn."""
    return Draws(tokens, [None] * len(tokens), [token < 0 for token in tokens])


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probabilities of the rows that request them, on the device; `fill` adds them to draws once downloaded.

    asked     rows, each with its index
    most      number of likeliest tokens for each
    values    float64 [N]: log-probabilities of each row's own token; of the drawn ones after penalties, bias and mask;
              ids of the likeliest tokens, `most` per row, and their log-probabilities; and those of the `others`
    """

    asked: Sequence[tuple[int, Row]]
    most: int
    values: torch.Tensor

    def fill(self, draws: Draws, start: int, values: npt.NDArray[np.float64]) -> None:
        """Adds the downloaded `values` to `draws`, which already has the tokens; its rows begin at `start`."""
        count, num_drawn = len(self.asked), sum(row.target is None for _, row in self.asked)
        ends = np.cumsum([count, num_drawn, count * self.most, count * self.most])
        own, finals, ids, tops, others = np.split(values, ends)
        top = zip(ids.astype(np.int64).reshape(count, -1).tolist(), tops.reshape(count, -1).tolist(), strict=True)
        final, other = iter(finals.tolist()), iter(others.tolist())
        for (index, row), logprob, pairs in zip(self.asked, own.tolist(), top, strict=True):
            token = max(draws.tokens[start + index], 0) if row.target is None else row.target
            likely = tuple(zip(*pairs, strict=True))[: row.params.logprobs or 0]
            told = tuple((named, next(other)) for named in row.others) or likely
            masked = next(final) if row.target is None else None
            draws.logprobs[start + index] = TokenLogprob(token, logprob, told, masked)


def draw_rows(
    draw: DrawRows,
    logits: torch.Tensor,
    rows: Sequence[Row],
    masks: Masks | None,
    off: SampleRows,
    find: Likeliest = likeliest,
) -> tuple[torch.Tensor, Scores | None]:
    """Draws tokens int64 [R] on the device, negative where none can be drawn; `logits` [R, V] may be overwritten.

    off    parameters of as many rows, for unused settings
    find   finds the likeliest tokens

    Also returns log-probabilities, if any are requested. Does not wait for the device.
    """
    scored = [index for index, row in enumerate(rows) if row.params.logprobs is not None or row.target is not None]
    (where,) = upload(logits.device, np.array(scored, np.int64)) if scored else (None,)
    raw = None if where is None else logits.index_select(0, where).float()
    _penalise(logits, rows)
    numbers = np.array([_GREEDY if row.target is not None else sampling_numbers(row.params) for row in rows])
    numbers = numbers.reshape(-1, 4)
    bias_row, bias_ids, bias_values = _biases(rows, logits.shape[1])
    tables: dict[str, npt.NDArray[Any]] = {} if masks is None else {"mask": masks}
    if len(bias_ids):
        tables |= {"bias_ids": bias_ids, "bias_values": bias_values}
    columns: dict[str, npt.NDArray[Any]] = {
        "temperature": numbers[:, 0].astype(np.float32),
        "top_k": numbers[:, 1].astype(np.int32),
        "top_p": numbers[:, 2].astype(np.float32),
        "min_p": numbers[:, 3].astype(np.float32),
        "seed": seed_bits([row.seed for row in rows]),
        "position": np.array([row.position for row in rows], np.int64),
        "mask_row": np.array(
            [-1 if row.masked is None or row.target is not None else row.masked for row in rows], np.int32
        ),
        "bias_row": bias_row,
    }
    sent = upload(logits.device, *columns.values(), *tables.values())
    drawn_by = replace(off, **dict(zip(columns, sent, strict=False)))
    found = SampleTables(**dict(zip(tables, sent[len(columns) :], strict=True)))
    tokens = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    filters = any(row.params.cuts for row in rows if row.target is None)
    draw(logits, drawn_by, found, tokens, filters=filters)
    if raw is None or where is None:
        return tokens, None
    return tokens, _score(raw, logits, [(index, rows[index]) for index in scored], found.mask, tokens, find)


_GREEDY = (0.0, 0, 1.0, 0.0)


def sampling_numbers(params: SamplingParams) -> tuple[float, int, float, float]:
    """Returns temperature, top-k, top-p and min-p for the kernels: 0, 0, 1 and 0 mean greedy, or off."""
    if params.greedy:
        return _GREEDY
    return max(params.temperature, COLDEST), max(params.top_k or 0, 0), params.top_p, params.min_p


def seed_bits(seeds: Sequence[int]) -> npt.NDArray[np.int64]:
    """Returns the lowest 64 bits of each seed, for the kernels."""
    return np.array([seed & _WORD for seed in seeds], np.uint64).view(np.int64)


def _penalise(logits: torch.Tensor, rows: Sequence[Row]) -> None:
    """Applies repetition, frequency and presence penalties to `logits` [R, V] in place. Never waits for the device."""
    drawn = [(index, row) for index, row in enumerate(rows) if row.target is None]
    repeated = [(index, row) for index, row in drawn if row.params.repetition_penalty != 1.0 and len(row.seen)]
    if repeated:
        penalty = np.array([row.params.repetition_penalty for _, row in repeated], np.float32)
        places, factors = upload(
            logits.device,
            _places([(index, row.seen) for index, row in repeated]),
            np.repeat(penalty, [len(row.seen) for _, row in repeated]),
        )
        values = logits[places[0], places[1]]
        logits[places[0], places[1]] = torch.where(values > 0, values / factors, values * factors).to(values.dtype)
    counted = [(index, row) for index, row in drawn if row.counts and _counts_matter(row.params)]
    if counted:
        penalties = [
            np.array(list(row.counts.values()), np.float32) * np.float32(row.params.frequency_penalty)
            + np.float32(row.params.presence_penalty)
            for _, row in counted
        ]
        places, amounts = upload(
            logits.device, _places([(index, list(row.counts)) for index, row in counted]), np.concatenate(penalties)
        )
        logits[places[0], places[1]] -= amounts.to(logits.dtype)


def _counts_matter(params: SamplingParams) -> bool:
    return bool(params.frequency_penalty or params.presence_penalty)


def _places(tokens: Sequence[tuple[int, Sequence[int] | npt.NDArray[np.intp]]]) -> npt.NDArray[np.int64]:
    """Returns rows and columns, [2, N], of the tokens given for each row."""
    rows = np.repeat([row for row, _ in tokens], [len(ids) for _, ids in tokens])
    return np.stack([rows, np.concatenate([np.asarray(ids) for _, ids in tokens])]).astype(np.int64)


def _biases(
    rows: Sequence[Row], vocab_size: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Returns the table row of each row, -1 if it has no bias, and the table as in SampleTables."""
    biases = [row.bias if row.target is None else {} for row in rows]
    width = max(map(len, biases), default=0)
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


def _score(
    raw: torch.Tensor,
    logits: torch.Tensor,
    asked: Sequence[tuple[int, Row]],
    masks: torch.Tensor | None,
    tokens: torch.Tensor,
    find: Likeliest,
) -> Scores:
    """Returns the log-probabilities that the rows `asked` for.

    raw      [S, V] float32: logits of these rows as computed by the model
    logits   [R, V]: logits of all rows, after penalties
    masks    masks that `Row.masked` points into, on the device
    """
    most = min(max(row.params.logprobs or 0 for _, row in asked), raw.shape[1])
    listed = [(line, row.others) for line, (_, row) in enumerate(asked) if row.others]
    index, target, others = upload(
        raw.device,
        np.array([index for index, _ in asked], np.int64),
        np.array([-1 if row.target is None else row.target for _, row in asked], np.int64),
        _places(listed) if listed else np.empty((2, 0), np.int64),
    )
    named = torch.where(target >= 0, target, tokens.index_select(0, index).clamp(min=0))[:, None]
    total, top = log_sum(raw), find(raw, most)
    parts = [
        raw.gather(1, named) - total,
        _finals(logits, [(line, *each) for line, each in enumerate(asked) if each[1].target is None], masks, named),
        top.double(),
        raw.gather(1, top) - total,
        raw[others[0], others[1]] - total[others[0], 0],
    ]
    return Scores(asked, most, torch.cat([part.flatten() for part in parts]))


def _finals(
    logits: torch.Tensor, drawn: Sequence[tuple[int, int, Row]], masks: torch.Tensor | None, named: torch.Tensor
) -> torch.Tensor:
    """Returns log-probabilities, float64 [D, 1], of drawn tokens after penalties, bias and masks.

    drawn    for each row, its line in `named` int64 [S, 1], its index in `logits`, and the row
    """
    if not drawn:
        return torch.empty(0, 1, dtype=torch.float64, device=logits.device)
    line_of, where = upload(logits.device, *np.array([each[:2] for each in drawn], np.int64).T)
    lines = logits.index_select(0, where).float()
    biases = [(line, bias) for line, (_, _, row) in enumerate(drawn) if (bias := row.bias)]
    if biases:
        added = np.concatenate([np.fromiter(bias.values(), np.float32, len(bias)) for _, bias in biases])
        places, amounts = upload(lines.device, _places([(line, list(bias)) for line, bias in biases]), added)
        lines[places[0], places[1]] += amounts
    masked = [(line, row.masked) for line, (_, _, row) in enumerate(drawn) if row.masked is not None]
    if masked:
        assert masks is not None
        under, mask_of = upload(lines.device, *np.array(masked, np.int64).T)
        mask_logits_(lines, masks[mask_of], under)
    return lines.gather(1, named.index_select(0, line_of)) - log_sum(lines)


def log_sum(lines: torch.Tensor) -> torch.Tensor:
    """Returns the log-sum-exp, float64 [S, 1], of `lines` [S, V] float32: rounded after the maximum is subtracted."""
    top = lines.amax(dim=1, keepdim=True)
    return (lines - top).exp_().sum(dim=1, keepdim=True).double().log_() + top
