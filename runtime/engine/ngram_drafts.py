"""What a sequence may say next, since it said so before: drafts looked up in its own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

SIZES = (6, 3)
"""Tokens that must have occurred before, the longest first."""
MAX_DRAFTS = 32
"""In one pass and sequence, forced and guessed."""
MAX_TOKENS = 16_384
"""Tokens looked up in at most. An entry takes some 150 bytes a size: as nothing beside their keys and values."""


@dataclass(slots=True)
class Repeats:
    """Where the runs of `SIZES` tokens occurred last in one sequence, which only grows.

    A token costs the same whenever it comes: one entry a size, and where there are more than `max_tokens`, the later
    half of them is entered again. `num_known` tokens have been.
    """

    max_tokens: int = MAX_TOKENS
    _after: tuple[dict[int, int], ...] = field(default_factory=lambda: tuple({} for _ in SIZES))
    _first: int = 0
    num_known: int = 0

    def find(self, tokens: Sequence[int], more: Sequence[int] = ()) -> tuple[int, int] | None:
        """The position in `tokens` of what came after the latest occurrence of the last tokens of `tokens` + `more`,
        and how many those were; None if the last few are new.

        `tokens` are those of the last call and what has followed since.
        """
        self._learn(tokens)
        last = [*tokens[-SIZES[0] :], *more]
        for size, after in zip(SIZES, self._after, strict=True):
            run = last[-size:]
            position = after.get(hash(tuple(run)))
            if position is not None and list(tokens[position - size : position]) == run:
                return position, size
        return None

    def _learn(self, tokens: Sequence[int]) -> None:
        """Enters the runs that something follows by now."""
        count = len(tokens)
        if count - self._first > self.max_tokens:
            self._first = self.num_known = count - self.max_tokens // 2
            for after in self._after:
                after.clear()
        for size, after in zip(SIZES, self._after, strict=True):
            # Runs that end before position `stop`, and were not followed by anything the last time.
            start = max(self.num_known, self._first + size)
            if count - start == 1:
                after[hash(tuple(tokens[start - size : start]))] = start
            elif count > start:
                known = tokens[start - size : count - 1]
                runs = zip(*(known[offset:] for offset in range(size)), strict=False)
                after.update(zip(map(hash, runs), range(start, count), strict=True))
        self.num_known = max(count, self.num_known)
