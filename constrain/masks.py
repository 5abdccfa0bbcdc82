"""Fills the mask rows of a batch, on several threads without the interpreter lock."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor

from .errors import MatcherError
from .grammar import Matcher
from .matcher import TokenMatcher


class MaskFiller:
    """Fills rows of token bitmasks. One at a time; the matchers must not be used meanwhile."""

    def __init__(self, num_threads: int = 2) -> None:
        self._executor = LLExecutor(num_threads)

    def fill(self, matchers: Sequence[Matcher | None], out: npt.NDArray[np.int32]) -> dict[int, MatcherError]:
        """Writes row i of `out` (int32 [R, W], contiguous) for matcher i; a row without matcher is not touched.

        Returns the rows at a dead end: those generations must end, the others are not affected. Their mask is void.
        """
        if out.dtype != np.int32 or out.ndim != 2 or not out.flags.c_contiguous or len(matchers) > len(out):
            raise ValueError(f"out must be contiguous int32 [{len(matchers)}, W], got {out.dtype} {list(out.shape)}")
        states = []
        failed: dict[int, MatcherError] = {}
        for row, matcher in enumerate(matchers):
            if isinstance(matcher, TokenMatcher) and not matcher.closed:
                states.append((matcher.state, row))
            elif matcher is not None:
                matcher.fill_mask(out[row])
        if states:
            self._executor.unsafe_compute_mask_ptr(states, out.ctypes.data, out.strides[0], len(out))
        for row, matcher in enumerate(matchers):
            if isinstance(matcher, TokenMatcher):
                try:
                    matcher.check(out[row])
                except MatcherError as error:
                    failed[row] = error
        return failed


def fill_masks(
    matchers: Sequence[Matcher | None], out: npt.NDArray[np.int32], *, filler: MaskFiller | None = None
) -> dict[int, MatcherError]:
    """`MaskFiller.fill` with `filler`, or with one made for this call."""
    return (filler or MaskFiller()).fill(matchers, out)
