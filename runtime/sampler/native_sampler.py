"""Sampler in the CPU library, for logits in the host's memory: one call per step, whose threads share the rows."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from ...kernels.native import library as native
from ...kernels.native.threads import Threads
from ...kernels.native.weights import aligned
from ..protocol.request import TokenLogprob
from .rows import Draws, Logits, Masks, Row

_ROW = struct.Struct("=Qqd2f7i")
"""Layout of the part of bough_draw that the caller fills in."""
_SIZE = ctypes.sizeof(native.Draw)
_WORD = (1 << 64) - 1
_ROWS, _EDIT = np.dtype(native.Draw), np.dtype(native.Edit)
_NO_ROW = np.empty(0, np.int32)


class NativeSampler:
    """`Sampler` in C, on `threads`."""

    def __init__(self, library: native.Library, threads: Threads) -> None:
        self._library = library
        self._threads = threads
        self._workspace = aligned(0)

    def sample(self, logits: Logits, rows: Sequence[Row], masks: Masks | None) -> Draws:
        """See Sampler."""
        logits = np.ascontiguousarray(logits)
        vocab = logits.shape[1]
        needed = self._library.sampling_bytes(self._threads.num, vocab)
        if needed > len(self._workspace):
            self._workspace = aligned(needed)
        edits = _Edits()
        memory = bytearray(_SIZE * len(rows))
        for index, row in enumerate(rows):
            _fill(memory, index * _SIZE, row, edits)
        draws = np.frombuffer(memory, _ROWS)
        edit_table = edits.table()
        if edits.num and not 0 <= edit_table["token"].min() <= edit_table["token"].max() < vocab:
            raise IndexError(f"a token to be penalised or biased is not in 0 .. {vocab - 1}")
        mask_table = _NO_ROW if masks is None else np.ascontiguousarray(masks, np.int32)
        num_scored = len(rows) if any(row.params.logprobs for row in rows) else 0
        likeliest = np.empty((num_scored, native.MAX_LIKELIEST), np.int32)
        likeliest_logits = np.empty((num_scored, native.MAX_LIKELIEST), np.float32)
        tables = (logits, draws, mask_table, edit_table, likeliest, likeliest_logits, self._workspace)
        sampling = native.Sampling(*(table.ctypes.data for table in tables), len(rows), vocab)
        self._library.sample(self._threads.address, ctypes.addressof(sampling))
        tokens: list[int] = draws["token"].tolist()
        logprobs: list[TokenLogprob | None] = [None] * len(rows)
        for index, row in enumerate(rows):
            if row.params.logprobs is not None or row.target is not None:
                top = (
                    zip(likeliest[index].tolist(), likeliest_logits[index].tolist(), strict=True) if num_scored else ()
                )
                logprobs[index] = _logprob(draws[index], row, logits[index], top)
        return Draws([max(token, 0) for token in tokens], logprobs, [token < 0 for token in tokens])


class _Edits:
    """Edits of single logits, for all rows."""

    def __init__(self) -> None:
        self.num = 0
        self._parts: list[npt.NDArray[np.void]] = []

    def add(self, tokens: npt.NDArray[np.intp], change: npt.NDArray[np.float32] | float) -> None:
        part = np.empty(len(tokens), _EDIT)
        part["token"], part["change"] = tokens, change
        self._parts.append(part)
        self.num += len(part)

    def table(self) -> npt.NDArray[np.void]:
        return np.concatenate(self._parts) if self._parts else np.empty(0, _EDIT)


def _fill(memory: bytearray, offset: int, row: Row, edits: _Edits) -> None:
    params, first = row.params, edits.num
    first_added = first
    if row.target is not None:
        asks = native.TARGET | native.SCORE
    else:
        asks = native.SCORE if params.logprobs is not None else 0
        if params.repetition_penalty != 1.0 and len(row.seen):
            edits.add(np.asarray(row.seen), params.repetition_penalty)
            first_added = edits.num
        if row.counts and (params.frequency_penalty or params.presence_penalty):
            times = np.fromiter(row.counts.values(), np.float32, len(row.counts))
            amounts = times * np.float32(params.frequency_penalty) + np.float32(params.presence_penalty)
            edits.add(np.fromiter(row.counts, np.intp, len(row.counts)), -amounts)
        if params.logit_bias or row.banned:
            bias = row.bias
            edits.add(np.fromiter(bias, np.intp, len(bias)), np.fromiter(bias.values(), np.float32, len(bias)))
    _ROW.pack_into(
        memory,
        offset,
        row.seed & _WORD,
        row.position,
        params.temperature,
        params.top_p,
        params.min_p,
        max(params.top_k or 0, 0),
        asks,
        params.logprobs or 0,
        -1 if row.masked is None else row.masked,
        first,
        first_added,
        edits.num,
    )


def _logprob(draw: np.void, row: Row, line: Logits, top: Iterable[tuple[int, float]]) -> TokenLogprob:
    """Returns the library's log-probabilities for a row that requests them."""
    if draw["token"] < 0:
        return TokenLogprob(0 if row.target is None else row.target, math.nan, (), None)
    log_sum = float(draw["raw_top"]) + math.log(draw["raw_sum"])
    num_top = min(row.params.logprobs or 0, len(line))
    pairs = tuple((token, logit - log_sum) for token, logit in islice(top, num_top))
    if row.target is not None:
        others = tuple((token, float(line[token]) - log_sum) for token in row.others)
        return TokenLogprob(row.target, float(line[row.target]) - log_sum, others or pairs, None)
    final = float(draw["final"]) - (float(draw["final_top"]) + math.log(draw["final_sum"]))
    return TokenLogprob(int(draw["token"]), float(draw["raw"]) - log_sum, pairs, final)
