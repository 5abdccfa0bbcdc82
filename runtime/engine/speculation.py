"""Speculation: drafts that may follow, where the chance that they are right outweighs the rows they cost in a pass."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ...constrain import Matcher, MatcherError
from ..protocol.counters import Counters
from .json_drafts import Place

SIZES = (6, 3)
"""Tokens that must have occurred before, the longest first."""
MAX_DRAFTS = 32
"""In one pass and sequence, forced and speculated."""
MAX_TOKENS = 16_384
"""Tokens looked up in at most. An entry takes some 150 bytes a size: as nothing beside their keys and values."""
MAX_SPECULATED = 16
"""In one pass and sequence."""
_MARGIN = 1.3
"""The gain that a draft must promise beyond the cost of its row: looking for it and estimating wrongly cost as well."""
_FIXED_ROWS = 16.0
"""Before it is measured, what a pass costs whatever its rows, in rows."""
_PRIOR_WEIGHT = 50.0
_CHANCES = dict(zip(SIZES, (0.8, 0.3), strict=True))
"""Before they are measured, by how many tokens a place was found with. A sequence begins with half of it at least."""
_BEST_CHANCE = 0.97
_SHARED = 0
"""In place of a number of tokens: what other answers under the constraint went on with."""
_LOOKUPS = 64
"""Tokens to take note of for each that may still come, at most: a long prompt is not worth it for a short answer."""


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


class PassCosts:
    """Seconds of a pass as a line over its rows, and the tokens a second that passes gave, both from those seen lately.

    Only how many rows are computed depends on it, never what is drawn.
    """

    def __init__(self) -> None:
        self._weight = self._rows = self._seconds = 0.0  # means
        self._spread = self._slope_seen = 0.0  # of the rows, and of the seconds along with them: sums
        self._tokens_lately = self._seconds_lately = 0.0

    def observe(self, num_rows: int, num_tokens: int, seconds: float) -> None:
        """A pass of decoding sequences alone gave `num_tokens`."""
        if self._weight > 8.0:  # something else had the processor
            seconds = min(seconds, 4.0 * self._pass_s(num_rows))
        decay = 0.995
        self._weight = decay * self._weight + 1.0
        away, late = num_rows - self._rows, seconds - self._seconds
        self._rows += away / self._weight
        self._seconds += late / self._weight
        self._spread = decay * self._spread + away * (num_rows - self._rows)
        self._slope_seen = decay * self._slope_seen + away * (seconds - self._seconds)
        self._tokens_lately = 0.8 * self._tokens_lately + num_tokens
        self._seconds_lately = 0.8 * self._seconds_lately + seconds

    def price(self, num_sequences: int) -> float:
        """The chance at which a draft is worth its row, where so many sequences draw: what its time gives otherwise."""
        rows = max(num_sequences, 1)
        if self._seconds <= 0.0:
            return _MARGIN * rows / (_FIXED_ROWS + rows)
        rate = self._tokens_lately / self._seconds_lately if self._seconds_lately > 0.0 else 0.0
        return _MARGIN * self._row_s * max(rows / self._pass_s(rows), rate)

    @property
    def _row_s(self) -> float:
        expected = self._seconds / (_FIXED_ROWS + self._rows)
        slope = (self._slope_seen + _PRIOR_WEIGHT * expected) / (self._spread + _PRIOR_WEIGHT)
        return min(max(slope, expected / 4), self._seconds / self._rows)

    def _pass_s(self, num_rows: int) -> float:
        row_s = self._row_s
        return max(self._seconds + row_s * (num_rows - self._rows), row_s * num_rows)


class Experience:
    """The share of the speculative drafts of all sequences that was right lately, and counts of all that were made."""

    def __init__(self, counters: Counters) -> None:
        self.chances = dict(_CHANCES)
        self._counters = counters

    def add(self, size: int, right: bool, tried: bool) -> None:
        """Counts one more draft. Not `tried`: one before it was wrong already."""
        self._counters.guessed_tokens += 1
        self._counters.right_guesses += right
        if tried and size != _SHARED:  # skeletons see for themselves how often they are right
            self.chances[size] = max(0.98 * self.chances[size] + 0.02 * right, _CHANCES[size] / 2)


class Speculation:
    """The speculative drafts of one sequence.

    They are what other answers under its constraint went on with at its `place` in their skeleton, and what followed
    the last time that its last tokens occurred in it (prompt lookup).
    """

    def __init__(self, experience: Experience, place: Place | None = None) -> None:
        self.speculated: dict[int, int] = {}
        """Their offsets in the drafts in flight, each with the number of tokens by which its place was found."""
        self._experience = experience
        self._place = place
        self._repeats = Repeats()
        self._right = dict.fromkeys(SIZES, 0.0)
        self._tried = dict.fromkeys(SIZES, 0.0)

    def extend(
        self,
        drafts: list[int],
        tokens: Sequence[int],
        matcher: Matcher | None,
        *,
        price: float,
        room: int,
        ends: Collection[int],
        jumps: bool,
    ) -> None:
        """Appends drafts to `drafts`, which follow `tokens`; at most `room` and one more may come, none of `ends`.

        Each is allowed by `matcher`, which is left as it is; with `jumps` what it forces after one comes along. All
        must be right with a chance of at least `price`.
        """
        self.speculated = {}
        looks = price <= max(map(self._chance, SIZES)) and len(tokens) - self._repeats.num_known <= _LOOKUPS * room
        if not looks:
            self._forget(0.99)
        place, found = _follow(self._place, drafts), None
        chance, trial = 1.0, None
        room = min(room, MAX_DRAFTS)
        while len(drafts) < room and len(self.speculated) < MAX_SPECULATED:
            if place is not None and chance * place.chance >= price:
                token, size, found = place.token, _SHARED, None
                chance *= place.chance
            else:
                found = (found or self._repeats.find(tokens, drafts)) if looks else None
                if found is None:
                    return
                position, size = found
                chance *= self._chance(size)
                if chance < price:
                    if not self.speculated:
                        self._forget(0.99)
                    return
                token = tokens[position] if position < len(tokens) else drafts[position - len(tokens)]
                found = position + 1, size
            if token in ends:
                return
            try:
                if matcher is not None:
                    trial = _after(matcher, drafts) if trial is None else trial
                    trial.accept(token)
                    if matcher.free and not trial.free:
                        return  # no masks are made for this pass
                self.speculated[len(drafts)] = size
                drafts.append(token)
                place = _follow(place, (token,))
                if trial is not None and jumps and (forced := trial.forced_tokens()[: room - len(drafts)]):
                    trial, found = None, None
                    drafts += forced
                    place = _follow(place, forced)
            except MatcherError:
                return

    def settle(self, drafts: Sequence[int], tokens: Sequence[int]) -> None:
        """`tokens` came: as many of `drafts`, which have been verified, as were right, and one more or none."""
        for offset, size in self.speculated.items():
            if offset < len(drafts):
                tried = offset < len(tokens)
                right = tried and tokens[offset] == drafts[offset]
                self._experience.add(size, right, tried)
                if tried and size != _SHARED:
                    self._right[size] = 0.9 * self._right[size] + right
                    self._tried[size] = 0.9 * self._tried[size] + 1.0
        self.speculated = {}
        if self._place is not None:
            self._place = self._place.teach(tokens)

    def _chance(self, size: int) -> float:
        return min((self._right[size] + self._experience.chances[size]) / (self._tried[size] + 1.0), _BEST_CHANCE)

    def _forget(self, share: float) -> None:
        """What was in vain may be worth another trial some day."""
        for size in SIZES:
            self._right[size] *= share
            self._tried[size] *= share


def _follow(place: Place | None, tokens: Sequence[int]) -> Place | None:
    for token in tokens:
        place = place and place.follow(token)
    return place


def _after(matcher: Matcher, drafts: Sequence[int]) -> Matcher:
    """A matcher after `drafts`. Raises MatcherError if they are not allowed."""
    trial = matcher.copy()
    for draft in drafts:
        trial.accept(draft)
    return trial
