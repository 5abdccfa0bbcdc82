"""The margin rule excuses near ties, and nothing else."""

from __future__ import annotations

import math
from itertools import product
from random import Random

import numpy as np
import pytest

from .margin import Answer, Choice, MarginRule, chance, choice_of, faults, summary

RULE = MarginRule()
BEST = Choice(0.0, 0, 0.001)
TIE = Choice(0.04, 1, 0.01)


def answer(*choices: Choice, warm: bool = False, name: str = "a") -> Answer:
    return Answer(name, choices, warm)


def test_answers_of_the_reference_itself() -> None:
    assert faults([answer(*[BEST] * 20, warm=warm) for warm in (True, False)], RULE) == []
    assert faults([], RULE) == []
    assert faults([answer()], RULE) == []


def test_a_rare_near_tie_is_excused_wherever_it_is() -> None:
    others = [answer(*[BEST] * 5, warm=index % 2 == 0) for index in range(40)]
    assert faults([*others, answer(BEST, TIE, BEST, TIE)], RULE) == []


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (Choice(0.06, 1), "a, token 2: rank 1, 0.06 below the best"),
        (Choice(0.04, 2), "a, token 2: rank 2, 0.04 below the best"),
        (Choice(math.inf, 9), "a, token 2: rank 9, inf below the best"),
        (Choice(math.nan, 0), "a, token 2: rank 0, nan below the best"),
    ],
)
def test_a_wrong_token_is_named(choice: Choice, message: str) -> None:
    others = [answer(BEST, name=f"other {index}") for index in range(40)]
    assert faults([*others, answer(BEST, TIE, choice, choice)], RULE) == [message]


def test_how_many_may_be_tied_is_up_to_the_rule() -> None:
    answers = [*[answer(BEST)] * 40, answer(Choice(0.04, 2))]
    assert faults(answers, MarginRule(rank=2)) == []
    assert len(faults(answers, RULE)) == 1


def test_near_ties_must_be_rare() -> None:
    answers = [answer(BEST, TIE if index < 6 else BEST, warm=index % 2 == 0) for index in range(100)]
    assert faults(answers, RULE) == ["6.0% of 100 answers hold a near tie, 5.0% are excused"]
    assert faults(answers[1:], MarginRule(share=0.06)) == []


def test_near_ties_must_not_come_from_the_cache() -> None:
    """The rule excuses as many ties, but not if all of them are warm."""
    answers = [answer(TIE if index < 10 else BEST, warm=index < 100) for index in range(200)]
    assert faults(answers, RULE) == ["near ties in 10 of 100 warm answers, but 0 of 100 cold ones"]
    mixed = [answer(TIE if index % 20 == 0 else BEST, warm=index % 3 == 0) for index in range(200)]
    assert faults(mixed, RULE) == []


def test_logprobs_are_compared() -> None:
    assert faults([answer(Choice(0, 0, 0.05), Choice(0, 0, -0.05))], RULE) == [
        "log-probabilities are off by 0.05 in the mean, 0.03 is excused"
    ]
    assert faults([answer(*[BEST] * 99, Choice(0, 0, -0.4))], RULE) == [
        "a log-probability is off by 0.4, 0.3 is excused"
    ]
    assert faults([answer(Choice(0, 0, None))], RULE) == []


def test_how_the_reference_sees_a_token() -> None:
    logits = np.array([1.0, 3.0, 2.5, -4.0], dtype=np.float32)
    assert choice_of(logits, 1) == Choice(0.0, 0)
    assert choice_of(logits, 2) == Choice(0.5, 1)
    allowed = np.array([True, False, True, True])
    assert choice_of(logits, 2, allowed=allowed) == Choice(0.0, 0)
    assert choice_of(logits, 0, allowed=allowed) == Choice(1.5, 1)
    assert choice_of(logits, 1, allowed=allowed) == Choice(math.inf, 3)
    right = 2.5 - math.log(sum(math.exp(value) for value in (1.0, 3.0, 2.5, -4.0)))
    assert choice_of(logits, 2, logprob=right + 0.25).error == pytest.approx(0.25)
    assert choice_of(logits, 2, allowed=allowed, logprob=right).error == pytest.approx(0, abs=1e-12), "of the raw model"


def test_the_summary() -> None:
    assert summary([answer(BEST, TIE), answer(BEST, Choice(0.1, 1))]) == (
        "2 answers, 2 with a near tie, 2 of 4 tokens; largest gap 0.1, "
        "log-probabilities off by 0.004 in the mean, 0.01 at most"
    )


def test_the_chance_of_a_difference() -> None:
    assert chance(0, 0, 0, 0) == chance(3, 10, 3, 10) == chance(0, 5, 0, 50) == 1.0
    assert chance(18, 40, 0, 40) < 1e-6
    assert chance(3, 4, 1, 4) == pytest.approx(34 / 70)  # a lady tasting tea
    for a, b in product(range(6), range(8)):
        assert chance(a, 5, b, 7) == pytest.approx(chance(b, 7, a, 5))


def test_the_chance_is_as_frequent_as_it_says() -> None:
    random = Random(0)
    draws = [
        chance(sum(random.random() < 0.1 for _ in range(60)), 60, sum(random.random() < 0.1 for _ in range(40)), 40)
        for _ in range(2000)
    ]
    assert sum(draw < 0.05 for draw in draws) / len(draws) <= 0.06
    assert sum(draw < 0.01 for draw in draws) / len(draws) <= 0.015
