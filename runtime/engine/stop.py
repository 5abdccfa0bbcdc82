"""Finds stop strings in a stream of characters, in time linear in the text."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class StopState(NamedTuple):
    """Where a search stands: `depth` characters at the end of the text begin a stop string, the longest such.

    `found` is the longest stop string that ends here.
    """

    node: int
    depth: int
    found: str | None


class StopAutomaton:
    """Aho and Corasick's automaton (CACM 18(6), 1975) over the stop strings. Immutable; share it between searches."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._fail = [0]
        found: list[str | None] = [None]
        depth = [0]
        for stop in stops:
            node = 0
            for char in stop:
                if char not in self._next[node]:
                    self._next[node][char] = len(self._next)
                    self._next.append({})
                    self._fail.append(0)
                    found.append(None)
                    depth.append(depth[node] + 1)
                node = self._next[node][char]
            found[node] = stop
        queue = deque(self._next[0].values())
        while queue:  # by depth: the state to fall back to is complete before it is needed
            node = queue.popleft()
            found[node] = found[node] or found[self._fail[node]]
            for char, child in self._next[node].items():
                self._fail[child] = self._step(self._fail[node], char)
                queue.append(child)
        self._states = [StopState(node, depth[node], found[node]) for node in range(len(depth))]
        self.start = self._states[0]

    def advance(self, state: StopState, char: str) -> StopState:
        """The state after one more character."""
        return self._states[self._step(state.node, char)]

    def _step(self, node: int, char: str) -> int:
        while node and char not in self._next[node]:
            node = self._fail[node]
        return self._next[node].get(char, 0)
