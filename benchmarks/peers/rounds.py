"""Rounds in which our engine and one peer's take turns on the same work, be it prompts or programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Generic, Protocol, TypeVar

from .environments import PeerError, say
from .process import Side

REST_S = 0.5
"""After each turn: what a side still does once it has answered does not run beside the other."""

_MORE_THAN_BEFORE = 1.2  # a round is begun if there is time for one that takes so much longer


class OursFailedError(PeerError):
    """Failure of our own side."""


class Rated(Protocol):
    """Result of a side's work in a round."""

    @property
    def rate(self) -> float: ...


Made = TypeVar("Made", bound=Rated)


@dataclass
class Pairs(Generic[Made]):
    """The rounds of two sides so far: `ours[i]` and `theirs[i]` are of the same work.

    note   why there are no more
    """

    ours: list[Made] = field(default_factory=list)
    theirs: list[Made] = field(default_factory=list)
    note: str = ""

    @property
    def ratios(self) -> list[float]:
        """Ratios of ours to theirs, a round each: by rates, since answers may differ in length."""
        return [ours.rate / theirs.rate for ours, theirs in zip(self.ours, self.theirs, strict=True)]

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def rates(self) -> tuple[float, float]:
        """Medians of ours and theirs."""
        return median(each.rate for each in self.ours), median(each.rate for each in self.theirs)


Key = tuple[str, ...]
"""Name of what is played, in parts: a workload of prompts, or one of programs and its level."""

Work = Callable[[Side], Made]
"""Job of each side in a round."""


class Turns:
    """Two sides that do the same work in turn; who begins changes from round to round.

    deadline  in `time.monotonic` seconds: what would not end before is left out
    """

    def __init__(self, ours: Side, theirs: Side, deadline: float) -> None:
        self.ours, self.theirs = ours, theirs
        self.deadline = deadline
        self._took: dict[Key, float] = {}

    def play(
        self, contests: Mapping[Key, Pairs[Made]], num_rounds: int, prepare: Callable[[Key], Work[Made] | None]
    ) -> None:
        """Rounds of every contest, `num_rounds` at most, each once before any a second time.

        What the peer fails at is noted, and not tried again; what we fail at is an error of ours.

        prepare   makes the work of a round, new for each; None: this one is not worth it

        Raises:
            OursFailedError: our side failed.
        """
        for number in range(num_rounds):
            for key, pairs in contests.items():
                if self._allows(key, number, pairs) and (work := prepare(key)) is not None:
                    say(f"{self.theirs.name}: {', '.join(key)}")
                    self._round(key, number, pairs, work)

    def _allows(self, key: Key, number: int, pairs: Pairs[Made]) -> bool:
        """Tells whether there can be a round of that number; why not is noted."""
        left_s = self.deadline - time.monotonic()
        pairs.note = pairs.note or self.theirs.ended
        if not pairs.note and (left_s <= 0 or self._took.get(key, 0.0) * _MORE_THAN_BEFORE > left_s):
            pairs.note = f"no time for more than {number} rounds"
        return not pairs.note

    def _round(self, key: Key, number: int, pairs: Pairs[Made], work: Work[Made]) -> None:
        started = time.monotonic()
        found: dict[str, Made] = {}
        for side in (self.ours, self.theirs) if number % 2 == 0 else (self.theirs, self.ours):
            try:
                found[side.name] = work(side)
            except (PeerError, ValueError) as error:
                if side is self.ours:
                    raise OursFailedError(f"{', '.join(key)}: {error}") from error
                pairs.note = str(error)
                return
            time.sleep(REST_S)
        pairs.ours.append(found[self.ours.name])
        pairs.theirs.append(found[self.theirs.name])
        self._took[key] = time.monotonic() - started
