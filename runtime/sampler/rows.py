"""Logits in the host's memory to tokens, a row at a time, while it is in the cache of the processor; no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from ...constrain.matchers.interface import TableMatcher
from ...kernels.sampling import host_sampling
from ..protocol.request import TokenLogprob
from ..protocol.sampling_params import SamplingParams

Logits = npt.NDArray[np.float32]

NARROW_WORDS = 64
"""Number of words with tokens up to which only those words of a mask are looked at."""

_SLOW_ROWS = 4
"""Rows that are not just the likeliest token, for which a further thread is worth it."""

_FORBIDDEN = np.where(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), 0.0, -np.inf)
_FORBIDDEN = _FORBIDDEN.astype(np.float32)
"""Added to the logits of eight tokens, for each byte of a mask."""


class Row(msgspec.Struct, frozen=True):
    """Parameters of a draw from one row of logits.

    uniform      in [0, 1): the row's random number, that of (seed, position)
    counts       generated token id -> times, for frequency and presence penalties; read only
    seen         distinct prompt and generated ids, for the repetition penalty
    banned       ids not allowed here (ends of sequence before min_tokens)
    masked       the row of the mask ring that applies, or None
    matcher      that follows the constraint, if its states may live on the device: it stands before this draw
    target       a token whose log-probability is asked for instead of a draw (scoring)
    others       further such tokens: they come as the `top` of the first
    """

    params: SamplingParams
    uniform: float = 0.0
    seed: int = 0
    position: int = 0
    counts: Mapping[int, int] = {}
    seen: Sequence[int] = ()
    banned: Sequence[int] = ()
    masked: int | None = None
    matcher: TableMatcher | None = None
    target: int | None = None
    others: Sequence[int] = ()

    @property
    def bias(self) -> dict[int, float]:
        """Returns what is added to the logits of single tokens: the request's own, and -inf for what is banned."""
        return {**(self.params.logit_bias or {}), **dict.fromkeys(self.banned, -math.inf)}


@dataclass(frozen=True, slots=True)
class Draws:
    """One entry a row: the token drawn, log-probabilities where asked for, and whether the row was not finite."""

    tokens: list[int]
    logprobs: list[TokenLogprob | None]
    poisoned: list[bool]


def sample(
    logits: Logits, rows: Sequence[Row], masks: npt.NDArray[np.int32] | None, threads: SampleThreads | None = None
) -> Draws:
    """Draws a token from each row of `logits` [R, V] float32, which is overwritten.

    `masks` int32 [M, ceil(V / 32)] holds the rows that `Row.masked` points into.
    """
    parts = [(logits, rows)] if threads is None else threads.divide(logits, rows)

    def sample_part(part: tuple[Logits, Sequence[Row]]) -> list[_Drawn]:
        with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is told, row by row
            return [_sample_row(line, row, masks) for line, row in zip(*part, strict=True)]

    found = map(sample_part, parts) if threads is None or len(parts) == 1 else threads.map(sample_part, parts)
    drawn = [entry for part in found for entry in part]
    return Draws([entry[0] for entry in drawn], [entry[1] for entry in drawn], [not entry[2] for entry in drawn])


class SampleThreads:
    """`num` threads for rows whose draw takes longer than waking a thread; numpy leaves the interpreter's lock."""

    def __init__(self, num: int) -> None:
        self._num = num
        self._pool = ThreadPoolExecutor(num, thread_name_prefix="bough-sample")  # which begins none yet
        self.map = self._pool.map

    def divide(self, logits: Logits, rows: Sequence[Row]) -> list[tuple[Logits, Sequence[Row]]]:
        """One part for each thread, or one in all."""
        num_slow = sum(not row.params.greedy or row.params.logprobs is not None for row in rows)
        num_parts = max(min(self._num, num_slow // _SLOW_ROWS), 1)
        borders = [len(rows) * part // num_parts for part in range(num_parts + 1)]
        return [(logits[start:stop], rows[start:stop]) for start, stop in pairwise(borders)]


_Drawn = tuple[int, TokenLogprob | None, bool]
"""The token drawn, its log-probability if that was asked for, and whether all was finite."""


def _sample_row(line: Logits, row: Row, masks: npt.NDArray[np.int32] | None) -> _Drawn:
    peak = host_sampling.peak(line)
    place, finite = max(peak, 0), peak >= 0
    if row.target is not None:
        return place, _score(line, row, row.target), finite
    asked = row.params.logprobs is not None
    raw = _raw(line, row.params.logprobs or 0) if asked else None
    changed = _penalise(line, row)
    allowed: npt.NDArray[np.intp] | None = None
    if row.masked is not None:
        assert masks is not None
        mask = masks[row.masked]
        allowed = None if asked else narrow(mask)
        if allowed is None:
            forbid(line, mask)
        elif not len(allowed):
            return 0, None, False
        else:
            line = line[allowed]
    if changed or row.masked is not None:
        place = int(line.argmax())
        finite = finite and math.isfinite(line[place])
    if finite and not row.params.greedy and len(line) > 1:
        place = _draw(line, row)
    logprob = None
    if raw is not None:
        final = float(line[place]) - host_sampling.log_sum_exp(line)
        logprob = TokenLogprob(place, float(raw.logits[place]) - raw.log_sum, raw.likeliest, final)
    return place if allowed is None else int(allowed[place]), logprob, finite


@dataclass(frozen=True, slots=True)
class _Raw:
    """The model's own logits [V] of a row, the logarithm of the sum of their exponentials, and its top alternatives."""

    logits: Logits
    log_sum: float
    likeliest: tuple[tuple[int, float], ...]


def _raw(line: Logits, count: int) -> _Raw:
    log_sum = host_sampling.log_sum_exp(line)
    pairs: tuple[tuple[int, float], ...] = ()
    if count and math.isfinite(log_sum):
        places = host_sampling.largest(line, min(count, len(line)))
        places = places[np.argsort(-line[places], kind="stable")]
        pairs = tuple((int(place), float(line[place]) - log_sum) for place in places)
    return _Raw(line.copy(), log_sum, pairs)


def _score(line: Logits, row: Row, target: int) -> TokenLogprob:
    """The log-probability of `row.target`, with its other targets as alternatives."""
    raw = _raw(line, row.params.logprobs or 0)
    others = tuple((token, float(line[token]) - raw.log_sum) for token in row.others)
    return TokenLogprob(target, float(line[target]) - raw.log_sum, others or raw.likeliest, None)


def _penalise(line: Logits, row: Row) -> bool:
    """Penalties, bias and bans, in place; whether there are any."""
    params, changed = row.params, False
    if params.repetition_penalty != 1.0 and row.seen:
        places, factor = np.asarray(row.seen), np.float32(params.repetition_penalty)
        values = line[places]
        line[places] = np.where(values > 0, values / factor, values * factor)
        changed = True
    for tokens, amounts in added(row):
        line[tokens] += amounts
        changed = True
    return changed


def added(row: Row) -> Iterator[tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]]:
    """Returns what is added to the logits of some tokens, one after the other: penalties, then bias and bans."""
    params = row.params
    if row.counts and (params.frequency_penalty or params.presence_penalty):
        times = np.fromiter(row.counts.values(), np.float32, len(row.counts))
        amounts = times * np.float32(params.frequency_penalty) + np.float32(params.presence_penalty)
        yield np.fromiter(row.counts, np.intp, len(row.counts)), -amounts
    if bias := row.bias:
        yield np.fromiter(bias, np.intp, len(bias)), np.fromiter(bias.values(), np.float32, len(bias))


def narrow(mask: npt.NDArray[np.int32]) -> npt.NDArray[np.intp] | None:
    """The tokens that a mask [ceil(V / 32)] allows, rising, if they are in few of its words."""
    words = np.flatnonzero(mask)
    if len(words) > NARROW_WORDS:
        return None
    places = np.flatnonzero(np.unpackbits(mask[words].view(np.uint8), bitorder="little"))
    tokens: npt.NDArray[np.intp] = words[places >> 5] * 32 + (places & 31)
    return tokens


def forbid(line: Logits, mask: npt.NDArray[np.int32]) -> None:
    """Sets the logits [V] that a mask forbids to -inf, in place."""
    line += _FORBIDDEN.take(mask.view(np.uint8), axis=0).reshape(-1)[: len(line)]


def _draw(line: Logits, row: Row) -> int:
    """Draws as kernels.sampling.reference does: in whole numbers, in the order of the vocabulary."""
    params, bits = row.params, random_bits(row)
    numbers = np.array([params.temperature, params.top_p, params.min_p], np.float32)
    temperature, top_p, min_p = numbers.tolist()
    if not params.cuts:
        return host_sampling.draw(line, temperature, bits)
    return host_sampling.draw_cut(line, temperature, (max(params.top_k or 0, 0), top_p, min_p), bits)


def random_bits(row: Row) -> int:
    """The row's random number in units of 2^-53."""
    return int(row.uniform * 2**53)
