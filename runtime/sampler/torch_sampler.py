"""Logits on any device to tokens, in torch: what runtime.sampler.rows draws, all rows at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from ...kernels.sampling.host_sampling import COLDEST, ONE
from ...kernels.sampling.mask_logits import mask_logits_
from ...kernels.sampling.reference import kept, pick
from ...kernels.staging import upload
from ..protocol.request import TokenLogprob
from ..protocol.sampling_params import SamplingParams
from .rows import Draws, Row, narrow, random_bits


@torch.inference_mode()
def sample(logits: torch.Tensor, rows: Sequence[Row], masks: npt.NDArray[np.int32] | None) -> Draws:
    """Draws a token from each row of `logits` [R, V] float32, which is overwritten.

    `masks` int32 [M, ceil(V / 32)] holds the rows that `Row.masked` points into.
    """
    bad = ~torch.isfinite(logits.sum(dim=1))
    raw = _raw_logprobs(logits, rows)
    _adjust(logits, rows)
    narrow = _narrow(rows, masks)
    wide = [index for index in range(len(rows)) if index not in narrow]
    masked = [(index, row.masked) for index in wide if (row := rows[index]).masked is not None]
    if masked:
        assert masks is not None
        where = torch.tensor([index for index, _ in masked], device=logits.device)
        chosen = torch.from_numpy(masks[[row for _, row in masked]])
        mask_logits_(logits, chosen.to(logits.device), where)
    tokens = logits.argmax(dim=1) if not narrow else torch.zeros(len(rows), dtype=torch.int64, device=logits.device)
    if narrow and wide:
        where = torch.tensor(wide, device=logits.device)
        tokens[where] = logits[where].argmax(dim=1)
    top = logits.gather(1, tokens[:, None])[:, 0]
    if narrow:
        where = torch.tensor(list(narrow), device=logits.device)
        tokens[where], top[where] = _draw_narrow(logits, {index: (rows[index], ids) for index, ids in narrow.items()})
    bad |= ~torch.isfinite(top)
    drawn = [index for index in wide if not rows[index].params.greedy and rows[index].target is None]
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
    for index, (values, likeliest) in raw.items():
        row = rows[index]
        token = result[index] if row.target is None else row.target
        if row.others:
            likeliest = tuple(zip(row.others, values[list(row.others)].tolist(), strict=True))
        final = float(logits[index, token]) - normaliser[index] if row.target is None else None
        logprobs[index] = TokenLogprob(token, float(values[token]), likeliest, final)
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
    """Repetition, frequency and presence penalties on `logits` [R, V], in place; nothing waits for the device."""
    drawn = [(index, row) for index, row in enumerate(rows) if row.target is None]
    repeated = [(index, row) for index, row in drawn if row.params.repetition_penalty != 1.0 and row.seen]
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


def _places(tokens: Sequence[tuple[int, Sequence[int]]]) -> npt.NDArray[np.int64]:
    """Rows and columns, [2, N], of tokens given for each row."""
    rows = np.repeat([row for row, _ in tokens], [len(ids) for _, ids in tokens])
    return np.stack([rows, np.concatenate([np.asarray(ids) for _, ids in tokens])]).astype(np.int64)


def _draw(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """One token id a row, as kernels.sampling.reference draws: in whole numbers, in the order of the vocabulary."""
    logits = logits.float()
    tokens = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    plain = [index for index, row in enumerate(rows) if not row.params.cuts]
    if plain:
        temperatures = torch.tensor([rows[index].params.temperature for index in plain], device=logits.device)
        scaled = logits[plain].double()
        scaled -= scaled.amax(dim=1, keepdim=True)
        scaled /= temperatures.double().clamp_(min=COLDEST)[:, None]
        reach = (scaled.exp_() * ONE).long().cumsum(dim=1)
        # The product has more than 64 bits, which only the host has.
        totals = zip(reach[:, -1].tolist(), plain, strict=True)
        wanted = torch.tensor([total * random_bits(rows[index]) >> 53 for total, index in totals], device=reach.device)
        tokens[plain] = torch.searchsorted(reach, wanted[:, None], right=True)[:, 0]
    for index, row in enumerate(rows):
        if row.params.cuts:
            numbers = np.array([row.params.temperature, row.params.top_p, row.params.min_p], np.float32)
            temperature, top_p, min_p = numbers.tolist()
            tokens[index] = pick(
                *kept(logits[index], temperature, row.params.top_k or 0, top_p, min_p), random_bits(row)
            )
    return tokens


def _narrow(rows: Sequence[Row], masks: npt.NDArray[np.int32] | None) -> dict[int, npt.NDArray[np.intp]]:
    """Of each row whose mask allows few tokens, and of which nothing but the draw is asked: these tokens, rising."""
    found = {}
    for index, row in enumerate(rows):
        if row.masked is None or row.params.logprobs is not None or row.target is not None:
            continue
        assert masks is not None
        allowed = narrow(masks[row.masked])
        if allowed is not None:
            found[index] = allowed
    return found


def _draw_narrow(
    logits: torch.Tensor, chosen: Mapping[int, tuple[Row, npt.NDArray[np.intp]]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws as `_draw` does, or takes a greedy row's likeliest, among few tokens; returns the largest logits, too."""
    widest = max((len(ids) for _, ids in chosen.values()), default=0)
    ids = np.zeros((len(chosen), max(widest, 1)), np.int64)
    absent = np.ones(ids.shape, np.bool_)
    for line, (_, allowed) in enumerate(chosen.values()):
        ids[line, : len(allowed)] = allowed
        absent[line, : len(allowed)] = False
    columns, nowhere, where = (
        torch.from_numpy(array).to(logits.device) for array in (ids, absent, np.array(list(chosen), np.int64))
    )
    values = logits[where[:, None], columns].masked_fill_(nowhere, -torch.inf)
    top, places = values.max(dim=1)
    drawn = [
        line
        for line, (row, allowed) in enumerate(chosen.values())
        if len(allowed) > 1 and not row.params.greedy and bool(torch.isfinite(top[line]))
    ]
    if drawn:
        rows = list(chosen.values())
        lines = torch.tensor(drawn, device=logits.device)
        places[lines] = _draw(values[lines], [rows[line][0] for line in drawn])
    return columns.gather(1, places[:, None])[:, 0], top
