"""A vocabulary as a trie over bytes, level by level, made once per model: whole levels are walked at a time."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Level:
    """The prefixes of tokens of one length, in order.

    parent   int32 [N]   the place, in the level before, of each without its last byte
    byte     uint8 [N]   its last byte
    tokens   int32 [K]   tokens that end at this level
    nodes    int32 [K]   where
    """

    parent: Int32
    byte: npt.NDArray[np.uint8]
    tokens: Int32
    nodes: Int32


def build_trie(tokens: Sequence[bytes | None], without: Container[int] = ()) -> tuple[Level, ...]:
    """The levels 1, 2, ... of the trie of `tokens`. Tokens `without` text of their own, None and empty ones are left
    out; level 0 is the root."""
    texts = sorted((text, token) for token, text in enumerate(tokens) if text and token not in without)
    if not texts:
        return ()
    order = np.array([token for _, token in texts], np.int32)
    length = np.array([len(text) for text, _ in texts])
    longest = int(length.max())
    padded = np.frombuffer(b"".join(text.ljust(longest, b"\0") for text, _ in texts), np.uint8)
    matrix = padded.reshape(len(texts), longest)
    # How many bytes each has in common with the one before it; at most both their lengths.
    differ = np.ones((len(texts), longest + 1), np.bool_)
    differ[1:, :-1] = matrix[1:] != matrix[:-1]
    common = np.minimum(differ.argmax(axis=1), length)
    common[1:] = np.minimum(common[1:], length[:-1])
    common[0] = 0
    levels = []
    before = np.zeros(len(texts), np.int32)
    for depth in range(1, longest + 1):
        rows = np.flatnonzero(length >= depth)
        fresh = common[rows] < depth
        node = np.zeros(len(texts), np.int32)
        node[rows] = np.cumsum(fresh) - 1
        ending = rows[length[rows] == depth]
        first = rows[fresh]
        levels.append(Level(before[first], matrix[first, depth - 1].copy(), order[ending], node[ending]))
        before = node
    return tuple(levels)
