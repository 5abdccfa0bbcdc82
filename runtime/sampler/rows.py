"""Rows of logits to draw from: the parameters of each, and its draw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from ...constrain.matchers.interface import TableMatcher
from ..protocol.request import TokenLogprob
from ..protocol.sampling_params import SamplingParams

Logits = npt.NDArray[np.float32]
Masks = npt.NDArray[np.int32]


class Row(msgspec.Struct, frozen=True):
    """Parameters of a draw from one row of logits.

    seed         seed of the request, of which the lowest 64 bits count
    position     position of the drawn token; its random number is that of (seed, position)
    counts       generated token id -> times, for frequency and presence penalties; read only
    seen         distinct prompt and generated ids, for the repetition penalty
    banned       ids not allowed here (ends of sequence before min_tokens)
    masked       the row of the masks that applies, or None
    matcher      matcher of the constraint before this draw, if its states may live on the device
    target       a token whose log-probability is requested instead of a draw (scoring)
    others       further such tokens: they are returned as the `top` of the first
    """

    params: SamplingParams
    seed: int = 0
    position: int = 0
    counts: Mapping[int, int] = {}
    seen: Sequence[int] | npt.NDArray[np.intp] = ()
    banned: Sequence[int] = ()
    masked: int | None = None
    matcher: TableMatcher | None = None
    target: int | None = None
    others: Sequence[int] = ()

    @property
    def bias(self) -> dict[int, float]:
        """Returns the numbers added to the logits of single tokens: the request's bias, and -inf for banned ones."""
        return bias_of(self.params, self.banned)


def bias_of(params: SamplingParams, banned: Sequence[int]) -> dict[int, float]:
    """Returns the request's bias, and -inf for banned tokens."""
    return {**(params.logit_bias or {}), **dict.fromkeys(banned, -math.inf)}


@dataclass(frozen=True, slots=True)
class Draws:
    """Draws, one entry per row: the token, log-probabilities if requested, and True if the row was not finite.

    faulty    indices of works of the plan in which a token without a row of logits was not finite
    """

    tokens: list[int]
    logprobs: list[TokenLogprob | None]
    poisoned: list[bool]
    faulty: frozenset[int] = frozenset()


class Sampler(Protocol):
    """Draws on the host."""

    def sample(self, logits: Logits, rows: Sequence[Row], masks: Masks | None) -> Draws:
        """Draws a token from each row of `logits` [R, V] float32, which may be overwritten.

        `masks` int32 [M, ceil(V / 32)] holds the rows that `Row.masked` points into.

        Raises:
            IndexError: a penalty or bias is for a token that the model does not have.
        """
