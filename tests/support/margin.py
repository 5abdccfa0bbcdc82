"""Margin rule: decides when two devices may disagree on a token because of rounding.

An answer is judged token by token, each against a reference that has read the same tokens before it, so that one
difference does not hide what comes after. A token that the reference does not prefer is excused if it is the
reference's second choice and the first is hardly better: a near tie. Near ties must be rare, and no more frequent where
the cache was used than where it was not: a wrong cache that is nearly right shows there and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Choice:
    """A token of an answer, as the reference sees it.

    gap      logit of the best token that was allowed there, minus this token's
    rank     allowed tokens that are better
    error    the answer's log-probability of this token minus the reference's; None where the answer has none
    """

    gap: float
    rank: int
    error: float | None = None


@dataclass(frozen=True)
class Answer:
    """The choices of one answer; `warm`: its prompt was partly in the cache."""

    name: str
    choices: tuple[Choice, ...]
    warm: bool


@dataclass(frozen=True)
class MarginRule:
    """Limits of what is excused.

    margin           gap of a near tie at most
    rank             tokens that may be better, in a near tie
    share            of answers that hold a near tie, at most
    mean_error       of log-probabilities, absolute, over all tokens of all answers
    largest_error    of a single one
    significance     probability at which near ties being distributed over warm and cold answers as they are is chance
    """

    margin: float = 0.05
    rank: int = 1
    share: float = 0.05
    mean_error: float = 0.03
    largest_error: float = 0.3
    significance: float = 0.01


def choice_of(
    logits: npt.NDArray[np.floating],
    token: int,
    *,
    allowed: npt.NDArray[np.bool_] | None = None,
    logprob: float | None = None,
) -> Choice:
    """Judges `token` by the reference's `logits` [V] among those `allowed` [V]; infinitely bad if it is not allowed."""
    wide = logits.astype(np.float64)
    top = wide.max()
    logprob_here = wide[token] - top - np.log(np.exp(wide - top).sum())
    error = None if logprob is None else float(logprob - logprob_here)
    if allowed is not None:
        wide = np.where(allowed, wide, -np.inf)
    gap = float("inf") if wide[token] == -np.inf else float(wide.max() - wide[token])
    return Choice(gap, int((wide > wide[token]).sum()), error)


def faults(answers: Sequence[Answer], rule: MarginRule) -> list[str]:
    """Everything that `rule` does not excuse; empty: the answers are as good as the reference's."""
    found = [fault for answer in answers for fault in _wrong_tokens(answer, rule)]
    tied = [any(choice.rank for choice in answer.choices) for answer in answers]
    if (share := sum(tied) / max(len(answers), 1)) > rule.share:
        found.append(f"{share:.1%} of {len(answers)} answers hold a near tie, {rule.share:.1%} are excused")
    errors = [abs(choice.error) for answer in answers for choice in answer.choices if choice.error is not None]
    if errors and (mean := sum(errors) / len(errors)) > rule.mean_error:
        found.append(f"log-probabilities are off by {mean:.2g} in the mean, {rule.mean_error} is excused")
    if errors and max(errors) > rule.largest_error:
        found.append(f"a log-probability is off by {max(errors):.2g}, {rule.largest_error} is excused")
    warm = [tie for tie, answer in zip(tied, answers, strict=True) if answer.warm]
    cold = [tie for tie, answer in zip(tied, answers, strict=True) if not answer.warm]
    if chance(sum(warm), len(warm), sum(cold), len(cold)) < rule.significance:
        found.append(f"near ties in {sum(warm)} of {len(warm)} warm answers, but {sum(cold)} of {len(cold)} cold ones")
    return found


def summary(answers: Sequence[Answer]) -> str:
    """Sums up what a rule is calibrated by."""
    choices = [choice for answer in answers for choice in answer.choices]
    errors = [abs(choice.error) for choice in choices if choice.error is not None] or [0.0]
    num_tied = sum(any(choice.rank for choice in answer.choices) for answer in answers)
    num_ties = sum(choice.rank > 0 for choice in choices)
    return (
        f"{len(answers)} answers, {num_tied} with a near tie, {num_ties} of {len(choices)} "
        f"tokens; largest gap {max(choice.gap for choice in choices):.3g}, log-probabilities off by "
        f"{sum(errors) / len(errors):.2g} in the mean, {max(errors):.2g} at most"
    )


def chance(hits: int, total: int, other_hits: int, other_total: int) -> float:
    """Probability that two groups of equal nature differ at least as much as these do (Fisher's exact test)."""
    all_hits, everyone = hits + other_hits, total + other_total

    def ways(count: int) -> int:
        return comb(total, count) * comb(other_total, all_hits - count)

    possible = range(max(0, all_hits - other_total), min(total, all_hits) + 1)
    seen = ways(hits)
    return sum(each for each in map(ways, possible) if each <= seen) / comb(everyone, all_hits)


def _wrong_tokens(answer: Answer, rule: MarginRule) -> list[str]:
    """The first token of an answer that is no near tie: what follows it is of no interest."""
    for place, choice in enumerate(answer.choices):
        if choice.rank > rule.rank or not choice.gap <= rule.margin:
            return [f"{answer.name}, token {place}: rank {choice.rank}, {choice.gap:.3g} below the best"]
    return []
