"""Incremental detokenisation: emits whole characters only, and no part of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from ..protocol.stop_pattern import PatternSearch, StopMatch
from ..tokenizer.tokenizer import Tokenizer


class Detokenizer:
    """Decodes the tokens of one generation and finds the stop that ends its text. Not thread-safe.

    The results of `push` and `finish`, joined, are the decoded text of all tokens, up to the stop if there is one.
    They do not depend on how tokens are grouped into calls.

    The stop string that begins first in the text wins; of two that begin together, the shorter. A match is not settled
    while an earlier one may still complete, so check `matched` after `finish` too.
    A pattern matches at the first possible position and ends as early as it can; no stop string waits for it.
    The first `num_hidden_bytes` of the text are dropped.
    With `at_end` the text is not needed before `finish`: unless there are stops to find, tokens are decoded only then.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: tuple[str, ...] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        num_hidden_bytes: int = 0,
        at_end: bool = False,
    ) -> None:
        self.matched: str | None = None
        self._num_hidden_bytes = num_hidden_bytes
        self._tokenizer = tokenizer
        self._include_stop = include_stop
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = tuple(text for text in stop if text)
        self._stops = _StopSearch(self._stop, None) if self._stop else None
        self._waiting: list[int] | None = [] if at_end and self._stops is None else None
        self._held = ""  # characters not returned yet
        self._released = 0  # characters returned; the held ones follow
        self._finished = False
        self._parts: list[str] = []

    def look_for(self, pattern: PatternSearch) -> None:
        """Lets a match of `pattern` end the text too. Must be called before the first token."""
        self._stops, self._waiting = _StopSearch(self._stop, pattern), None

    def without_stops(self) -> Detokenizer:
        """Returns a new detokenizer of the same text, for use at its end: without stops, with control tokens."""
        hidden = self._num_hidden_bytes
        return Detokenizer(self._tokenizer, skip_special_tokens=False, num_hidden_bytes=hidden, at_end=True)

    @property
    def text(self) -> str:
        """Text returned so far."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def push(self, tokens: Sequence[int], *, stops_count: bool = True) -> str:
        """Returns the text that is certain after `tokens`: up to a stop that has matched, and nothing after that.

        Without `stops_count`, a stop that these tokens complete is ordinary text.

        Raises:
            EngineError: the searches for patterns have taken too much time.
        """
        if self._finished or self.matched is not None:
            return ""
        if self._waiting is not None:
            self._waiting += tokens
            return ""
        return self._push(tokens, stops_count=stops_count)

    def _push(self, tokens: Sequence[int], *, stops_count: bool) -> str:
        skip = self._skip_special_tokens
        if len(tokens) == 1:
            data = self._tokenizer.piece(tokens[0], skip_special_tokens=skip)
        else:
            data = b"".join(self._tokenizer.pieces(tokens, skip_special_tokens=skip))
        if self._num_hidden_bytes:
            num_hidden = min(self._num_hidden_bytes, len(data))
            self._num_hidden_bytes -= num_hidden
            data = data[num_hidden:]
        return self._take(self._decoder.decode(data), stops_count=stops_count)

    def flush(self) -> str:
        """Returns the text that `at_end` has held back so far."""
        waiting, self._waiting = self._waiting or [], None
        return self._push(waiting, stops_count=True) if waiting else ""

    def finish(self) -> str:
        """Returns the rest of the text; an incomplete character becomes U+FFFD. Later pushes are ignored."""
        if self._finished or self.matched is not None:
            return ""
        delta = self.flush()
        delta += self._take(self._decoder.decode(b"", final=True), stops_count=True)
        self._finished = True
        if self.matched is not None:
            return delta
        best = None if self._stops is None else self._stops.finish()
        return delta + (self._release(len(self._held)) if best is None else self._settle(best))

    def _take(self, text: str, *, stops_count: bool) -> str:
        """Adds characters to the text and returns those that are certain."""
        stops = self._stops
        if stops is None:  # nothing is ever held
            self._released += len(text)
            if text:
                self._parts.append(text)
            return text
        self._held += text
        for char in text:
            if (match := stops.advance(char, stops_count=stops_count)) is not None:
                return self._settle(match)
        return self._release(stops.certain - self._released)

    def _settle(self, match: StopMatch) -> str:
        """Ends the text at `match`."""
        self.matched = match.text
        end = match.stop if self._include_stop else match.start
        delta = self._release(end - self._released)
        self._held = ""
        return delta

    def _release(self, count: int) -> str:
        """Releases the first `count` held characters and returns them."""
        delta, self._held = self._held[:count], self._held[count:]
        self._released += len(delta)
        if delta:
            self._parts.append(delta)
        return delta


class _StopSearch:
    """Finds the stop that begins first in a text that arrives character by character."""

    def __init__(self, stop: tuple[str, ...], pattern: PatternSearch | None) -> None:
        self._automaton = StopAutomaton(stop)
        self._state = self._automaton.start
        self._pattern = pattern
        self._best: StopMatch | None = None  # of those found so far
        self._seen = 0  # characters searched

    def advance(self, char: str, *, stops_count: bool) -> StopMatch | None:
        """Returns the match that ends the text, once no other can begin before it."""
        self._seen += 1
        self._state = state = self._automaton.advance(self._state, char)
        by_pattern = None if self._pattern is None else self._pattern.advance(char)
        if stops_count and state.found is not None:
            self._keep_earlier(StopMatch(self._seen - len(state.found), self._seen, state.found))
        if stops_count:
            self._keep_earlier(by_pattern)
        best = self._best
        return best if best is not None and best.start <= self._seen - state.depth else None

    @property
    def certain(self) -> int:
        """Number of leading characters in which no stop can begin."""
        certain = self._seen - self._state.depth
        if self._best is not None:
            certain = min(certain, self._best.start)
        return certain if self._pattern is None else min(certain, self._pattern.live_from)

    def finish(self) -> StopMatch | None:
        """Returns the match that ends the text, given that no more characters follow."""
        if self._pattern is not None:
            self._keep_earlier(self._pattern.finish())
        return self._best

    def _keep_earlier(self, match: StopMatch | None) -> None:
        if match is not None and (self._best is None or match.start < self._best.start):
            self._best = match


class StopState:
    """State of the search: the last `depth` characters of the text are the longest prefix of a stop string.

    stops      stop strings with this prefix
    found      the longest stop string that ends here
    fallback   state of the longest proper suffix of these characters; None at the start
    ahead      characters that continue one of `stops`
    following  states after one more character, as far as they have been reached
    """

    __slots__ = ("ahead", "depth", "fallback", "following", "found", "stops")

    def __init__(self, stops: Sequence[str], depth: int, fallback: StopState | None) -> None:
        self.stops = stops
        self.depth = depth
        self.fallback = fallback
        self.found: str | None = next((stop for stop in stops if len(stop) == depth), None)
        if self.found is None and fallback is not None:
            self.found = fallback.found
        self.ahead = frozenset(stop[depth] for stop in stops if len(stop) > depth)
        self.following: dict[str, StopState] = {}


class StopAutomaton:
    """Aho-Corasick automaton (CACM 18(6), 1975) over the stop strings. States are built when a text first reaches them,
    so that construction takes no time however long the strings are."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.start = StopState(stops, 0, None)

    def advance(self, state: StopState, char: str) -> StopState:
        """Returns the state after one more character."""
        position: StopState | None = state
        while position is not None:
            if char in position.ahead:
                return position.following.get(char) or self._reach(position, char)
            position = position.fallback
        return self.start

    def _reach(self, state: StopState, char: str) -> StopState:
        """Builds the state after a character in `ahead`.

        May recurse to build its fallbacks, each of which is the prefix of another stop string.
        """
        stops = [stop for stop in state.stops if stop.startswith(char, state.depth)]
        fallback = self.start if state.fallback is None else self.advance(state.fallback, char)
        state.following[char] = reached = StopState(stops, state.depth + 1, fallback)
        return reached
