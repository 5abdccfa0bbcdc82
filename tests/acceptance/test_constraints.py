"""Promise: constraints are right, complete, and harmless to everyone else; see `bough bench constrain` for speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bough.benchmarks.constrain.cases import SchemaCase, suite_cases
from bough.benchmarks.constrain.contest import Score
from bough.benchmarks.constrain.generate import sample_masks, sample_model
from bough.benchmarks.harness.report import percentile
from bough.constrain import Vocabulary
from bough.runtime.client.llm import LLM

from ..constrain.search.endurance import measure_held, measure_memory
from ..constrain.search.hostile import LIMIT_S, hostile_bodies, measure_hostile, summary
from ..constrain.search.judge import Ours, judge

pytestmark = [pytest.mark.model, pytest.mark.slow]

SUITE = Path(__file__).parents[1] / "data" / "json_schema_test_suite" / "draft2020-12"
MODEL = "smollm2-135m"


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    llm = LLM(MODEL, max_num_seqs=32)
    yield llm
    llm.close()


@pytest.fixture(scope="module")
def vocabulary(llm: LLM) -> Vocabulary:
    tokenizer = llm.get_tokenizer()
    return tokenizer.vocabulary(tokenizer.vocab_size)


@pytest.fixture(scope="module")
def cases() -> list[SchemaCase]:
    return list(suite_cases(SUITE))


def test_the_official_suite(vocabulary: Vocabulary, cases: list[SchemaCase], figures: Callable[[str], None]) -> None:
    subject = Ours(vocabulary)
    outcomes = [judge(case, subject) for case in cases]
    counts = Score.of(outcome for outcome in outcomes if outcome.group != "format")  # there formats are annotations
    figures(f"{counts} groups without format.json, {Score.of(outcomes)} with it")
    assert [outcome.name for outcome in outcomes if outcome.under] == []
    assert counts.right >= 0.9 * counts.total


def test_what_the_masks_allow_validates(
    full: bool, vocabulary: Vocabulary, cases: list[SchemaCase], figures: Callable[[str], None]
) -> None:
    samples = sample_masks(cases, vocabulary, 2_000 if full else 200)
    figures(f"{samples.total - len(samples.wrong)} of {samples.total} over {samples.schemas} schemas validate")
    assert samples.wrong == []


def test_what_the_model_says_validates(
    full: bool, llm: LLM, cases: list[SchemaCase], figures: Callable[[str], None]
) -> None:
    samples = sample_model(cases, llm, 2_000 if full else 32)
    figures(f"{samples.total - len(samples.wrong)} of {samples.total} at temperature 1.5 validate")
    assert samples.wrong == []


def test_hostile_constraints_harm_nobody(full: bool, figures: Callable[[str], None]) -> None:
    limit_s = LIMIT_S if full else 3 * LIMIT_S  # the machine is shared
    result = measure_hostile(MODEL, list(hostile_bodies(50 if full else 12)), limit_s=limit_s)
    figures(summary(result))
    assert result.passed, (result.slow, result.wrong, result.harmed)


def test_memory_is_bounded(full: bool, vocabulary: Vocabulary, figures: Callable[[str], None]) -> None:
    memory = measure_memory(vocabulary, 20_000 if full else 300, cache_bytes=(64 if full else 4) << 20)
    figures(f"{memory.start_mb:.0f} MB, after {memory.num_schemas} schemas {memory.after_mb[-1]:.0f} MB")
    assert memory.growth_mb < 100, memory


def test_the_interpreters_lock_is_not_held_for_long(
    full: bool, vocabulary: Vocabulary, cases: list[SchemaCase], figures: Callable[[str], None]
) -> None:
    held = measure_held(cases if full else cases[::8], vocabulary)
    worst = {name: percentile(times, 99.9) for name, times in held.calls_us.items()}
    figures(", ".join(f"{name} {us:.0f} us" for name, us in worst.items()) + " at p99.9")
    assert max(worst.values()) < 2_000
