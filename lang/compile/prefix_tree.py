"""Tokens of a program as a tree, as in the prefix cache, with the time at which each is computed."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence

ROOT = 0
HOLD_BACK = 16
"""A beginning that others compute at the same time is waited for from so many tokens on: as in SchedulerLimits."""

Time = tuple[float, float]
NEVER: Time = (math.inf, math.inf)


class TokenTree:
    """Nodes are numbers; each stands for the tokens from the root to it. What two branches begin with is one path."""

    def __init__(self) -> None:
        self._children: dict[tuple[int, Hashable], int] = {}
        self._parents = [ROOT]
        self._tokens: list[Hashable] = [None]
        self._since: list[Time] = [(-math.inf, -math.inf)]

    def after(self, node: int, tokens: Iterable[Hashable]) -> int:
        """The node behind `node` and these tokens."""
        for token in tokens:
            child = self._children.setdefault((node, token), len(self._parents))
            if child == len(self._parents):
                self._parents.append(node)
                self._tokens.append(token)
                self._since.append(NEVER)
            node = child
        return node

    def missing(self, node: int, now: Time = NEVER) -> int:
        """Counts the last tokens up to it that are still to be computed `now`. What others compute at the same time is
        waited for if it is long, and computed twice if it is not."""
        count = in_flight = 0
        while (since := self._since[node]) >= now and node != ROOT:
            count, in_flight = (count + 1, in_flight) if since == NEVER else (count, in_flight + 1)
            node = self._parents[node]
        return count if in_flight >= HOLD_BACK else count + in_flight

    def compute(self, node: int, now: Time) -> int:
        """All up to it is computed: how many tokens that is."""
        count = self.missing(node, now)
        while self._since[node] == NEVER:
            self._since[node] = now
            node = self._parents[node]
        return count

    def between(self, start: int, stop: int) -> list[Hashable]:
        """The tokens from one node to one below it."""
        found: list[Hashable] = []
        while stop != start:
            found.append(self._tokens[stop])
            stop = self._parents[stop]
        return found[::-1]

    def compute_all(self, node: int, choices: Sequence[Sequence[Hashable]], now: Time) -> int:
        """All up to `node`, and of choices behind it the tokens that something follows: how many tokens that is."""
        inner = {self.after(node, choice[:stop]) for choice in choices for stop in range(1, len(choice))}
        count = self.compute(node, now) + sum(self._since[one] == NEVER for one in inner)
        for one in inner:
            self.compute(one, now)
        return count
