"""Rounds in which our engine and one peer's take turns on the same work, be it prompts or programs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any, Generic, Protocol, TypeVar

import jsonschema
import msgspec

from ..workloads.prompts import SCHEMA, Prompts, PromptWorkload, RoundTime, count
from .environments import PeerError, say

_VALIDATOR = jsonschema.Draft202012Validator(msgspec.json.decode(SCHEMA))
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


class Asks(Protocol):
    """Side as rounds need it; see `process.Side`."""

    name: str
    ended: str

    def ask(self, job: str, limit_s: float, **arguments: Any) -> dict[str, Any]: ...


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


@dataclass
class PromptPairs(Pairs[RoundTime]):
    """The rounds of a workload of prompts."""

    workload: str = field(kw_only=True)
    peer: str = field(kw_only=True)


class Turns:
    """Two sides that do the same work in turn; who begins changes from round to round.

    deadline  in `time.monotonic` seconds: what would not end before is left out
    """

    def __init__(self, ours: Asks, theirs: Asks, deadline: float) -> None:
        self.ours, self.theirs = ours, theirs
        self.deadline = deadline
        self._took: dict[str, float] = {}

    def allow(self, name: str, number: int, pairs: Pairs[Made]) -> bool:
        """Tells whether round `number` of what is called `name` can be played; why not is noted."""
        left_s = self.deadline - time.monotonic()
        pairs.note = pairs.note or self.theirs.ended
        if not pairs.note and (left_s <= 0 or self._took.get(name, 0.0) * _MORE_THAN_BEFORE > left_s):
            pairs.note = f"no time for more than {number} rounds"
        return not pairs.note

    def play(self, name: str, number: int, pairs: Pairs[Made], work: Callable[[Asks], Made]) -> None:
        """A round: `work` is done with each side. At what the peer fails is noted.

        Raises:
            OursFailedError: our side failed.
        """
        started = time.monotonic()
        found: dict[str, Made] = {}
        for side in (self.ours, self.theirs) if number % 2 == 0 else (self.theirs, self.ours):
            try:
                found[side.name] = work(side)
            except (PeerError, ValueError) as error:
                if side is self.ours:
                    raise OursFailedError(f"{name}: {error}") from error
                pairs.note = str(error)
                return
            time.sleep(REST_S)
        pairs.ours.append(found[self.ours.name])
        pairs.theirs.append(found[self.theirs.name])
        self._took[name] = time.monotonic() - started


class Rounds:
    """The rounds against one peer, every workload once before any a second time.

    turns         the sides, and their time
    chosen        the workloads; `contests` has what was found for each so far
    first_number  of the first round: prompts depend on it, so that no side has seen any of them
    """

    def __init__(self, turns: Turns, chosen: Sequence[PromptWorkload], *, prompts: Prompts, first_number: int) -> None:
        self._turns = turns
        self._chosen = chosen
        self._prompts = prompts
        self._numbers = itertools.count(first_number)
        peer = turns.theirs.name
        self.contests = {each.name: PromptPairs(workload=each.name, peer=peer) for each in chosen}

    def run(self, num_rounds: int) -> None:
        """All workloads, `num_rounds` times at most.

        A workload that the peer fails at is not tried again; one that we fail at is an error of ours.

        Raises:
            OursFailedError: our side failed.
        """
        for number in range(num_rounds):
            for workload in self._chosen:
                contest = self.contests[workload.name]
                if self._turns.allow(workload.name, number, contest):
                    arguments = workload.make(self._prompts, next(self._numbers))
                    say(f"{self._turns.theirs.name}: {workload.name}")
                    self._turns.play(workload.name, number, contest, partial(self._work, workload, arguments))

    def _work(self, workload: PromptWorkload, arguments: dict[str, Any], side: Asks) -> RoundTime:
        limit_s = max(1.0, self._turns.deadline - time.monotonic())
        return count(workload, arguments, side.ask(workload.job, limit_s, **arguments), self._is_valid)

    def _is_valid(self, tokens: list[int]) -> bool:
        """True if an answer is a value of the schema."""
        try:
            return bool(_VALIDATOR.is_valid(msgspec.json.decode(self._prompts.tokenizer.decode(tokens))))
        except msgspec.DecodeError:
            return False
