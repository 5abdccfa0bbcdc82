"""The official JSON-Schema-Test-Suite: no invalid instance is let through, and most groups come out wholly right."""

from __future__ import annotations

from pathlib import Path

import pytest

from bough.benchmarks.constrain.cases import suite_cases
from bough.benchmarks.constrain.contest import Outcome, Score
from bough.constrain import Vocabulary

from .judge import Ours, judge

SUITE = Path(__file__).parents[2] / "data" / "json_schema_test_suite" / "draft2020-12"
AT_LEAST_RIGHT = 0.92
ANNOTATION = "format"  # in this file every `format` is an annotation; here it is enforced


@pytest.fixture(scope="module")
def outcomes(vocabulary: Vocabulary) -> list[Outcome]:
    subject = Ours(vocabulary)
    return [judge(case, subject) for case in suite_cases(SUITE, optional=True)]


def test_the_suite_is_whole(outcomes: list[Outcome]) -> None:
    required = [outcome for outcome in outcomes if not outcome.group.startswith("optional/")]
    assert len(required) == 383
    assert sum(outcome.num_instances for outcome in outcomes) > 2_000


def test_nothing_invalid_is_let_through(outcomes: list[Outcome]) -> None:
    assert [(outcome.name, outcome.under) for outcome in outcomes if outcome.under] == []


def test_most_groups_are_wholly_right(outcomes: list[Outcome]) -> None:
    counts = Score.of(outcome for outcome in outcomes if not outcome.group.startswith(("optional/", ANNOTATION)))
    assert counts.right >= AT_LEAST_RIGHT * counts.total, str(counts)


def test_a_refusal_says_why(outcomes: list[Outcome]) -> None:
    codes = ("unsupported_json_schema: ", "invalid_json_schema: ", "grammar_too_complex: ")
    refused = [outcome.refused for outcome in outcomes if outcome.refused is not None]
    assert refused
    assert [reason for reason in refused if not reason.startswith(codes)] == []


def test_a_schema_is_called_impossible_only_if_no_instance_is_valid(outcomes: list[Outcome]) -> None:
    cases = {case.name: case for case in suite_cases(SUITE, optional=True)}
    valid = {name: [instance.text for instance in case.instances if instance.valid] for name, case in cases.items()}
    assert [
        (outcome.name, valid[outcome.name]) for outcome in outcomes if outcome.impossible and valid[outcome.name]
    ] == []
