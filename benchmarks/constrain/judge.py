"""Judges masks: walks instances through them token by token, and counts what was let through and what was not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from .cases import Case


class Refused(Exception):  # noqa: N818  # an outcome, not a mistake
    """The schema was refused, with the reason given.

    impossible  because no value satisfies it
    """

    def __init__(self, reason: str, *, impossible: bool = False) -> None:
        super().__init__(reason)
        self.impossible = impossible


class Walk(msgspec.Struct):
    """How far a text came. `at` is the byte at which it was refused, None if it was not.

    mask_us     time of each mask that was computed on the way
    """

    accepted: bool
    at: int | None
    mask_us: list[float]
    why: str = ""


class Subject(Protocol):
    """An engine under test."""

    name: str

    def compile(self, schema: str) -> Callable[[str], Walk]:
        """What walks texts through the schema's masks. Raises Refused."""


class Outcome(msgspec.Struct):
    """What became of a case.

    compile_ms  until the schema was ready or refused
    over        (index, byte, why) of valid instances that were not accepted
    under       indices of invalid instances that were
    impossible  it was refused since no value satisfies it
    """

    group: str
    name: str
    compile_ms: float
    num_instances: int
    refused: str | None = None
    over: list[tuple[int, int, str]] = []
    under: list[int] = []
    mask_us: list[float] = []
    num_valid: int = 0
    impossible: bool = False

    @property
    def verdict(self) -> str:
        """ "right", "refused", "under" (whatever else), or "over".

        A schema that no value satisfies is to be refused as that: it is right if indeed no instance is valid.
        """
        if self.refused is not None:
            return "right" if self.impossible and self.num_instances and not self.num_valid else "refused"
        return "under" if self.under else "over" if self.over else "right"


def judge(case: Case, subject: Subject) -> Outcome:
    """Compiles the case's schema and walks its instances."""
    started = time.perf_counter()
    try:
        walker = subject.compile(case.schema)
    except Refused as error:
        compile_ms = (time.perf_counter() - started) * 1e3
        return outcome_of(case, compile_ms, str(error), impossible=error.impossible)
    outcome = outcome_of(case, (time.perf_counter() - started) * 1e3)
    for index, instance in enumerate(case.instances):
        walk = walker(instance.text)
        outcome.mask_us += walk.mask_us
        if instance.valid and not walk.accepted:
            outcome.over.append((index, -1 if walk.at is None else walk.at, walk.why))
        if walk.accepted and not instance.valid:
            outcome.under.append(index)
    return outcome


def outcome_of(case: Case, compile_ms: float, refused: str | None = None, *, impossible: bool = False) -> Outcome:
    """Before its instances are walked."""
    num_valid = sum(instance.valid for instance in case.instances)
    return Outcome(
        case.group,
        case.name,
        compile_ms,
        len(case.instances),
        num_valid=num_valid,
        refused=refused,
        impossible=impossible,
    )


class Score(msgspec.Struct):
    """Counts over cases: each is right, over-restricted, under-constrained or refused."""

    right: int = 0
    over: int = 0
    under: int = 0
    refused: int = 0

    @property
    def total(self) -> int:
        return self.right + self.over + self.under + self.refused

    def add(self, verdict: str) -> None:
        setattr(self, verdict, getattr(self, verdict) + 1)

    def __str__(self) -> str:
        share = f" = {100 * self.right / self.total:.1f} %" if self.total else ""
        return f"{self.right}/{self.total}{share} (o{self.over} u{self.under} e{self.refused})"


def score(outcomes: Iterable[Outcome]) -> Score:
    result = Score()
    for outcome in outcomes:
        result.add(outcome.verdict)
    return result


def by_group(outcomes: Iterable[Outcome]) -> dict[str, Score]:
    scores: dict[str, Score] = {}
    for outcome in outcomes:
        scores.setdefault(outcome.group, Score()).add(outcome.verdict)
    return scores


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of all do not exceed; NaN of none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
