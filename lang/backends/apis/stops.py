"""Stops for a text that arrives in pieces: cuts it at the first stop string or stop pattern."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from ....runtime.protocol.sampling_params import SamplingParams
from ....runtime.protocol.stop_pattern import PatternSearch, SearchBudget, StopPattern

_compiled = lru_cache(maxsize=64)(StopPattern)


class Cutter:
    """Takes pieces of one text, and passes on what is certain to stay.

    `matched` is what ended the text, once `over`; `text` is what stays of it.

    Raises:
        RequestError: the stop pattern cannot be used.
    """

    def __init__(self, sampling: SamplingParams, emit: Callable[[str], None] | None) -> None:
        self.text = ""
        self.over = False
        self.matched: str | None = None
        self._stops = sampling.stop_strings
        pattern = sampling.stop_regex
        self._search = None if pattern is None else PatternSearch(_compiled(pattern), SearchBudget())
        self._include = sampling.include_stop
        self._emit = emit
        self._num_sent = 0

    def feed(self, piece: str) -> None:
        """Takes the next piece. What comes after the end is dropped.

        Raises:
            EngineError: the search for the stop pattern takes too long.
        """
        if self.over or not piece:
            return
        start = max(0, len(self.text) - max(map(len, self._stops), default=1))
        self.text += piece
        found = [(place, stop) for stop in self._stops if (place := self.text.find(stop, start)) >= 0]
        if self._search is not None:
            match = next((match for char in piece if (match := self._search.advance(char)) is not None), None)
            found += [] if match is None else [(match.start, match.text)]
        if found:
            self._cut(*min(found))
        self._send(len(self.text) if self.over or self._search is None else self._search.live_from)

    def end(self) -> None:
        """No more comes. Raises as `feed`."""
        match = None if self.over or self._search is None else self._search.finish()
        if match is not None:
            self._cut(match.start, match.text)
        self.over = True
        self._send(len(self.text))

    def _cut(self, place: int, matched: str) -> None:
        self.text = self.text[: place + len(matched) if self._include else place]
        self.matched, self.over = matched, True

    def _send(self, limit: int) -> None:
        """Passes on up to `limit`, but not what may turn out to be the beginning of a stop string."""
        if not self.over:
            while limit > self._num_sent and any(self._begun(stop, limit) for stop in self._stops):
                limit -= 1
        if self._emit is not None and limit > self._num_sent:
            self._emit(self.text[self._num_sent : limit])
            self._num_sent = limit

    def _begun(self, stop: str, limit: int) -> bool:
        """Returns true if the text ends with a beginning of `stop` that covers its character at `limit - 1`."""
        return any(
            self.text.endswith(stop[:size]) and len(self.text) - size < limit
            for size in range(1, min(len(stop), len(self.text) + 1))
        )
