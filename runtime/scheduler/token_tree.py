"""Choices as a tree of tokens after a prompt: shared tokens are computed once, and the whole tree in one pass."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..protocol.request import TokenLogprob, TokenTree

Int64 = npt.NDArray[np.int64]


class TreeLayout:
    """Layout of a prompt that ends as a tree of tokens: segments, each on one path.

    It holds where segments begin and which they continue, as many requests may wait: paths are made for a pass.

    num_linear    leading tokens that follow one another, as in a plain prompt
    """

    def __init__(self, num_tokens: int, tree: TokenTree) -> None:
        first = num_tokens - len(tree.parents)
        self.targets = tree.targets
        starts = [0] if first else []
        starts += [first + i for i, parent in enumerate(tree.parents) if parent != first + i - 1 or parent < 0]
        self._bounds = [*starts, num_tokens]
        parents = [tree.parents[start - first] if start >= first else -1 for start in starts]
        self._branches = [(bisect_right(starts, parent) - 1, parent + 1) for parent in parents]
        self.num_linear = self._bounds[1]

    def rows(self, start: int, stop: int) -> Iterator[tuple[int, int, Int64]]:
        """Yields the segments of tokens start .. stop (half open) as (start, stop, path).

        A path holds the indices of all tokens from the root to the end of the segment, its own last.
        """
        known: dict[int, Int64] = {-1: np.empty(0, dtype=np.int64)}
        for index in range(bisect_right(self._bounds, start) - 1, bisect_left(self._bounds, stop)):
            low, high = max(start, self._bounds[index]), min(stop, self._bounds[index + 1])
            if low < high:
                own = np.arange(self._bounds[index], high, dtype=np.int64)
                yield low, high, np.concatenate([self._before(index, known), own])

    def _before(self, index: int, known: dict[int, Int64]) -> Int64:
        """Returns the path to where a segment begins; those on the way are added to `known`."""
        pending = [index]
        while pending:
            top = pending[-1]
            owner, stop = self._branches[top]
            if owner in known:
                path = np.arange(self._bounds[owner] if owner >= 0 else stop, stop, dtype=np.int64)
                known[pending.pop()] = np.concatenate([known[owner], path])
            else:
                pending.append(owner)
        return known[index]


MAX_PATH_TOKENS = 1 << 22
"""Most indices in the layout of a tree: tokens on the paths to all its choices, each with the whole prompt."""


@dataclass(eq=False, slots=True)
class _Node:
    children: dict[int, _Node] = field(default_factory=dict)


@dataclass(frozen=True)
class ChoiceTree:
    """Choices as the end of one prompt.

    choices    their indices
    paths      for each choice, the places of its tokens' log-probabilities: (scored position, token)
    """

    tokens: list[int]
    tree: TokenTree
    score_from: int
    choices: list[int]
    paths: list[list[tuple[int, int]]]

    def logprobs(self, entries: Sequence[TokenLogprob]) -> Iterator[tuple[int, list[TokenLogprob]]]:
        """Yields each choice with the log-probabilities of its tokens."""
        found = [{entry.token: entry.logprob, **dict(entry.top)} for entry in entries]
        for choice, path in zip(self.choices, self.paths, strict=True):
            yield choice, [TokenLogprob(token, found[position][token]) for position, token in path]


def plant(prompt: Sequence[int], choices: Sequence[Sequence[int]], max_tokens: int) -> Iterator[ChoiceTree]:
    """Yields `choices` after `prompt` as few trees, each of at most `max_tokens` including the prompt where possible.

    Without a prompt, the first token of a choice follows nothing, so its log-probability is not computed.
    """
    order = sorted(range(len(choices)), key=lambda index: tuple(choices[index]))
    if not prompt:
        order = [index for index in order if len(choices[index]) > 1]
    group: list[int] = []
    size, last = len(prompt), tuple[int, ...]()
    for index in order:
        # Its last token is computed only if another choice goes on there; neighbours share what they can.
        inner = tuple(choices[index])[:-1]
        shared = 0
        while shared < min(len(inner), len(last)) and inner[shared] == last[shared]:
            shared += 1
        if group and (size + len(inner) - shared > max_tokens or len(group) * len(prompt) > MAX_PATH_TOKENS):
            yield _plant(prompt, choices, group)
            group, size, shared = [], len(prompt), 0
        group.append(index)
        size += len(inner) - shared
        last = inner
    if group:
        yield _plant(prompt, choices, group)


def _plant(prompt: Sequence[int], choices: Sequence[Sequence[int]], group: list[int]) -> ChoiceTree:
    root = _Node()
    for index in group:
        node = root
        for token in choices[index]:
            node = node.children.setdefault(token, _Node())
    tokens = list(prompt)
    parents: list[int] = []
    targets: list[tuple[int, ...]] = []
    entry_of: dict[_Node, int] = {}
    if prompt:
        entry_of[root] = 0
        targets.append(tuple(root.children))
    stack = [(child, token, len(prompt) - 1) for token, child in reversed(root.children.items())]
    while stack:
        node, token, parent = stack.pop()
        if not node.children:
            continue
        entry_of[node] = len(targets)
        targets.append(tuple(node.children))
        parents.append(parent)
        tokens.append(token)
        here = len(tokens) - 1
        stack += [(child, following, here) for following, child in reversed(node.children.items())]
    paths = []
    for index in group:
        node, path = root, []
        for token in choices[index]:
            if node in entry_of:
                path.append((entry_of[node], token))
            node = node.children[token]
        paths.append(path)
    tree = TokenTree(tuple(parents), tuple(targets))
    return ChoiceTree(tokens, tree, max(len(prompt), 1), group, paths)
