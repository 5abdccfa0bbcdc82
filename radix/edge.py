"""Runs of token ids as packed arrays, and how far two runs agree."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

_FIRST_CHUNK = 64


def pack(tokens: Sequence[int]) -> array[int]:
    """The tokens as int32. Raises OverflowError, or struct.error, for what is no int32."""
    if len(tokens) < _FIRST_CHUNK or isinstance(tokens, array):
        return array("i", tokens)
    packed = array("i")
    packed.frombytes(struct.pack(f"{len(tokens)}i", *tokens))  # half the time of array("i", tokens)
    return packed


def common_prefix(edge: array[int], tokens: Sequence[int], start: int, stop: int) -> int:
    """Returns how many leading tokens of `edge` equal those of tokens[start:stop].

    Compares chunks that double, so that the cost follows the length of the answer and not that of the arguments.
    """
    limit = min(len(edge), stop - start)
    done, size = 0, _FIRST_CHUNK
    while done < limit:
        end = min(done + size, limit)
        theirs = pack(tokens[start + done : start + end])
        if edge[done:end] != theirs:
            return done + _first_difference(edge[done:end], theirs)
        done, size = end, 2 * size
    return limit


def _first_difference(a: array[int], b: array[int]) -> int:
    """The first index at which two unequal runs of one length differ, by bisection over slices."""
    low, high = 0, len(a)
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
