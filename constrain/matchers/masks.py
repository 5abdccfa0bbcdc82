"""Fills the masks of one generation: of its next token, and of what follows each token that is proposed for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from ..errors import MatcherError
from .interface import Matcher
from .token_matcher import TokenMatcher


def fill_along(matcher: Matcher, drafts: Sequence[int], out: npt.NDArray[np.int32]) -> int:
    """Writes the mask before the first of `drafts` and after each of them to the rows of `out`, int32 [1 + drafts, W].

    Returns how many rows are right: fewer than there are if a draft is not allowed or nothing may follow it, none at a
    dead end. The matcher ends where it began. The interpreter lock is released for most of the time.
    """
    if isinstance(matcher, TokenMatcher) and isinstance(matcher.state, LLMatcher) and drafts and not matcher.closed:
        return _fill_at_once(matcher.state, list(drafts), out)
    right = 0
    try:
        matcher.fill_mask(out[0])
        right = 1
        trial = matcher.copy() if drafts else matcher
        for draft in drafts:
            trial.accept(draft)
            trial.fill_mask(out[right])
            right += 1
    except MatcherError:
        pass  # the caller sees it in the count
    return right


def _fill_at_once(state: LLMatcher, drafts: list[int], out: npt.NDArray[np.int32]) -> int:
    """All rows in one call without the interpreter lock, by a copy: see `GrammarState`."""
    state = state.deep_copy()
    state.unsafe_compute_mask_ptr_with_draft_token(out.ctypes.data, out.strides[0], drafts)  # type: ignore[attr-defined]
    if state.is_error():
        return 0
    num_allowed = state.validate_tokens(drafts)
    empty = np.flatnonzero(~out[: 1 + num_allowed].any(axis=1))
    return int(empty[0]) if empty.size else 1 + num_allowed
