"""Draws from one row of logits in numpy: what `reference` draws, in exact fixed-point sums, without a sort of it.

Whatever part of the vocabulary matters is found by a bound first: the k-th largest of the maxima of disjoint groups is
no larger than the k-th largest of all, so that few logits are left to put into order.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..native.library import load_library

Floats = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.intp]
Weights = npt.NDArray[np.int64]

ONE = 2**42
"""The weight of the likeliest token. 2^20 tokens of it add up to less than 2^63; less than 1 / ONE is no weight."""

COLDEST = 1e-30
"""Temperatures below are taken as this one: float32 holds logits divided by it."""

_FEW = 64
"""Likeliest tokens that top-p looks at first; 16 times as many if they are too few."""
_GROUP = 64
"""Logits in a group of which only the largest is looked at first."""
_BLOCK = 512
"""Weights that are added up before the one that is drawn is sought among them."""


def peak(line: Floats) -> int:
    """The place of the largest of `line` [V], of equals the first; -1 if they are not all finite."""
    library = load_library()
    if library is not None and line.flags.c_contiguous:
        return library.find_peak(line.ctypes.data, len(line))
    place = int(line.argmax())
    return place if math.isfinite(line[place]) and math.isfinite(line.min()) else -1


def log_sum_exp(line: Floats) -> float:
    """The logarithm of the sum of exponentials of `line` [V]; NaN if the largest is not finite."""
    top = float(line.max())
    if not math.isfinite(top):
        return math.nan
    library = load_library()
    if library is not None and line.flags.c_contiguous:
        return top + math.log(library.sum_exp(line.ctypes.data, len(line), top))
    return top + math.log(np.add.reduce(np.exp(line - np.float32(top))))


def draw(line: Floats, temperature: float, bits: int) -> int:
    """A token of the logits `line` [V] by the random number, `bits` of 2^53. One of them must be finite, none NaN."""
    return pick(_weigh(line, line.max(), max(temperature, COLDEST)), bits)


def draw_cut(line: Floats, temperature: float, cuts: tuple[int, float, float], bits: int) -> int:
    """The same of what `kept` keeps."""
    tokens, weights = kept(line, temperature, *cuts)
    place = pick(weights, bits)
    return place if tokens is None else int(tokens[place])


def pick(weights: Weights, bits: int) -> int:
    """The place at which the running sum of `weights` passes `bits` of 2^53 of the total, which must not be 0."""
    blocks = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK)).cumsum()
    wanted = int(blocks[-1]) * bits >> 53  # the product has more than 64 bits
    block = int(np.searchsorted(blocks, wanted, side="right"))
    start = block * _BLOCK
    wanted -= int(blocks[block - 1]) if block else 0
    return start + int(np.searchsorted(weights[start : start + _BLOCK].cumsum(), wanted, side="right"))


def kept(line: Floats, temperature: float, top_k: int, top_p: float, min_p: float) -> tuple[Tokens | None, Weights]:
    """Applies top-k (0: off), then top-p to what is left, then min-p, as kernels.sampling.reference.kept does."""
    temperature = max(temperature, COLDEST)
    top = line.max()

    def weigh(values: Floats) -> Weights:
        return _weigh(values, top, temperature)

    tokens = None
    if 0 < top_k < len(line):
        tokens = largest(line, top_k)
    elif top_p >= 1.0 and min_p > 0.0:  # what weighs less is not worth a weight
        bound = float(top) + temperature * float(np.log(min_p)) * 1.0001 - 1e-3 - 1e-5 * abs(float(top))
        tokens = np.flatnonzero(line >= bound)
    if tokens is not None:
        line = line[tokens]
    weights = weigh(line)
    if top_p < 1.0:
        numerator, denominator = top_p.as_integer_ratio()
        goal = max(-(-int(weights.sum()) * numerator // denominator), 1)
        cut, mass_above = _mass_cut(line, weigh, goal)
        num_equal = -(-(goal - mass_above) // max(int(weigh(cut)[0]), 1))
        places = np.flatnonzero(line >= cut[0])
        weights = weights[places]
        weights[np.flatnonzero(line[places] == cut[0])[num_equal:]] = 0
        tokens = places if tokens is None else tokens[places]
    if min_p > 0.0:
        weights[weights < int(min_p * ONE)] = 0
    return tokens, weights


def largest(line: Floats, count: int) -> Tokens:
    """The places of the `count` largest of `line` [V], rising; of equal ones the first. 0 < count <= V, no NaN."""
    among: Tokens | None = None
    groups, rest = divmod(len(line), _GROUP)
    if 2 * count <= groups + rest:
        folded = line[: groups * _GROUP].reshape(_GROUP, groups).max(axis=0)
        maxima = np.concatenate([folded, line[groups * _GROUP :]])
        among = np.flatnonzero(line >= np.partition(maxima, -count)[-count])
    values = line if among is None else line[among]
    cut = np.partition(values, -count)[-count]
    places = np.flatnonzero(values >= cut)
    if len(places) > count:
        above = values[places] > cut
        places = np.sort(np.concatenate([places[above], places[~above][: count - int(above.sum())]]))
    return places if among is None else among[places]


def _weigh(values: Floats, top: np.float32, temperature: float) -> Weights:
    scaled = values.astype(np.float64)
    scaled -= float(top)
    if temperature != 1.0:
        scaled /= temperature
    np.exp(scaled, out=scaled)
    scaled *= ONE
    return scaled.astype(np.int64)


def _mass_cut(line: Floats, weigh: Callable[[Floats], Weights], goal: int) -> tuple[Floats, int]:
    """The logit at which the mass of the likeliest reaches `goal`, [1], and the mass above it."""
    size = min(_FEW, len(line))
    while True:
        values = -np.sort(-line[largest(line, size)])
        weights = weigh(values)
        reached = np.flatnonzero(weights.cumsum() >= goal)
        if len(reached) or size == len(line):
            cut = values[reached[0] :][:1] if len(reached) else values[-1:]
            return cut, int(weights[values > cut[0]].sum())
        size = min(size * 16, len(line))
