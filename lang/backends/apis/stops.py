"""Cuts a text that comes in pieces where a stop string or a stop pattern is found in it."""

from __future__ import annotations

from collections.abc import Callable

import regex

from ....runtime.protocol.sampling_params import SamplingParams


class Cutter:
    """Takes pieces of one text, and passes on what is certain to stay.

    `matched` is what ended the text, once `over`; `text` is what stays of it.
    """

    def __init__(self, sampling: SamplingParams, emit: Callable[[str], None] | None) -> None:
        self.text = ""
        self.over = False
        self.matched: str | None = None
        self._stops = sampling.stop_strings
        self._pattern = None if sampling.stop_regex is None else regex.compile(sampling.stop_regex)
        self._include = sampling.include_stop
        self._emit = emit
        self._num_sent = 0

    def feed(self, piece: str) -> None:
        """Takes the next piece. What comes after the end is dropped."""
        if self.over or not piece:
            return
        start = max(0, len(self.text) - max(map(len, self._stops), default=1))
        self.text += piece
        found = [(place, stop) for stop in self._stops if (place := self.text.find(stop, start)) >= 0]
        match = self._pattern.search(self.text) if self._pattern is not None else None
        if match is not None:
            found.append((match.start(), match.group()))
        if found:
            place, self.matched = min(found)
            self.text = self.text[: place + len(self.matched) if self._include else place]
            self.over = True
        self._send(len(self.text) if self.over or self._pattern is None else self._num_sent)

    def end(self) -> None:
        """No more comes."""
        self.over = True
        self._send(len(self.text))

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
