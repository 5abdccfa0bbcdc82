"""Rounds in which our engine and one peer's take turns on the same work."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import jsonschema
import msgspec

from .peer_environments import PeerError
from .peer_workloads import SCHEMA, Prompts, Timing, Workload, count

_VALIDATOR = jsonschema.Draft202012Validator(msgspec.json.decode(SCHEMA))
_MORE_THAN_BEFORE = 1.2  # a round is begun if there is time for one that takes so much longer


class Asks(Protocol):
    """What rounds need of a side; see `peer_process.Side`."""

    name: str

    def ask(self, job: str, limit_s: float, **arguments: Any) -> dict[str, Any]: ...


@dataclass
class Contest:
    """A workload with the rounds of both sides so far: `ours[i]` and `theirs[i]` are of the same prompts."""

    workload: str
    peer: str
    ours: list[Timing] = field(default_factory=list)
    theirs: list[Timing] = field(default_factory=list)
    note: str = ""

    @property
    def ratios(self) -> list[float]:
        """How much faster ours is, a round each: of tokens a second, since answers may differ in length."""
        return [ours.rate / theirs.rate for ours, theirs in zip(self.ours, self.theirs, strict=True)]


class Rounds:
    """The rounds against one peer, every workload once before any a second time; who begins changes.

    ours, theirs  the sides
    chosen        the workloads; `contests` has what was found for each so far
    first_number  of the first round: prompts depend on it, so that no side has seen any of them
    deadline      in `time.monotonic` seconds: what would not end before is left out
    """

    def __init__(
        self,
        ours: Asks,
        theirs: Asks,
        chosen: Sequence[Workload],
        *,
        prompts: Prompts,
        first_number: int,
        deadline: float,
    ) -> None:
        self._ours, self._theirs = ours, theirs
        self._chosen = chosen
        self._prompts = prompts
        self._next_number = first_number
        self._deadline = deadline
        self._took: dict[str, float] = {}
        self.contests = {workload.name: Contest(workload.name, theirs.name) for workload in chosen}

    def run(self, num_rounds: int, *, begin: Callable[[str], object], end: Callable[[], object]) -> None:
        """All workloads, `num_rounds` times at most. `begin` is called with a workload's name, `end` after its round.

        A workload that the peer fails at is not tried again; one that we fail at is an error of ours.

        Raises:
            PeerError: our side failed.
        """
        for number in range(num_rounds):
            for workload in self._chosen:
                begin(workload.name)
                self._try_round(workload, number)
                end()

    def _try_round(self, workload: Workload, number: int) -> None:
        contest = self.contests[workload.name]
        left_s = self._deadline - time.monotonic()
        if not contest.note and (left_s <= 0 or self._took.get(workload.name, 0.0) * _MORE_THAN_BEFORE > left_s):
            contest.note = f"no time for more than {number} rounds"
        if contest.note:
            return
        started = time.monotonic()
        self._round(workload, contest, ours_first=number % 2 == 0)
        self._took[workload.name] = time.monotonic() - started

    def _round(self, workload: Workload, contest: Contest, *, ours_first: bool) -> None:
        ours, theirs = self._ours, self._theirs
        arguments = workload.make(self._prompts, self._next_number)
        self._next_number += 1
        found: dict[str, Timing] = {}
        for side in (ours, theirs) if ours_first else (theirs, ours):
            try:
                limit_s = max(1.0, self._deadline - time.monotonic())
                answer = side.ask(workload.job, limit_s, **arguments)
                found[side.name] = count(workload, arguments, answer, self._is_valid)
            except (PeerError, ValueError) as error:
                if side is ours:
                    raise PeerError(f"{workload.name}: {error}") from error
                contest.note = str(error)
                return
        contest.ours.append(found[ours.name])
        contest.theirs.append(found[theirs.name])

    def _is_valid(self, tokens: list[int]) -> bool:
        """Whether an answer is a value of the schema."""
        try:
            value = msgspec.json.decode(self._prompts.tokenizer.decode(tokens))
        except msgspec.DecodeError:
            return False
        return bool(_VALIDATOR.is_valid(value))
