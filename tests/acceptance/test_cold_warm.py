"""Promise: the cache, the batch, the chunks and retraction do not change a greedy answer, in float32 and by default."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from bough.benchmarks.workloads.prose import Prose
from bough.runtime.client.llm import LLM
from bough.runtime.protocol.counters import EngineStats
from bough.runtime.protocol.request import TokenLogprob
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.runtime.runner.native_runner import NativeRunner

pytestmark = [pytest.mark.model, pytest.mark.slow]

NUM_PAGES = 60_000
"""Tokens of cache: more than all requests together need, where retraction is not the point."""


@dataclass(frozen=True)
class Answers:
    """The tokens of each request, with the two likeliest at each place; and the engine's counters.

    exact   the CPU library computed them: nothing may change log-probabilities either
    """

    tokens: list[list[int]]
    logprobs: list[list[TokenLogprob]]
    stats: EngineStats
    exact: bool = False


@dataclass(frozen=True)
class Size:
    num_requests: int
    num_tokens: int
    small_pool: int  # pages, so few that much of what runs is put back


def variants(full: bool) -> list[dict[str, Any]]:
    """Engine options, the plainest first: the answers of all must equal those of the first."""
    return [
        {"enable_prefix_caching": cached, "max_num_seqs": batch, "max_batch_tokens": chunk}
        for cached in (False, True)
        for batch in (1, 64)
        for chunk in (512, 16)
        if full or (cached and batch == 64) or (not cached and batch == 1 and chunk == 512)
    ]


def make_prompts(tokenizer: Any, num_requests: int) -> list[list[int]]:
    """A tree of shared prefixes, three levels deep, in random order; each tenth request is a stem and nothing more."""
    prose, random = Prose(7), Random(3)
    roots = [prose.text(60) for _ in range(max(num_requests // 50, 2))]
    stems = [f"{root} {prose.text(30)}" for root in roots for _ in range(5)]
    prompts = []
    for index in range(num_requests):
        stem = stems[index % len(stems)]
        prompts.append(stem if index % 10 == 0 else f"{stem} {prose.text(random.choice((2, 10, 40)))}")
    random.shuffle(prompts)
    return [tokenizer.encode_prompt(prompt, special=True) for prompt in prompts]


def answer(size: Size, dtype: str, **options: Any) -> Answers:
    """Answers of an engine with these options to all requests, given to it at once."""
    gc.collect()  # an engine's parts know each other, so the last one's cache may still be there
    with contextlib.closing(LLM(dtype=dtype, **options)) as llm:
        prompts = make_prompts(llm.get_tokenizer(), size.num_requests)
        params = SamplingParams(temperature=0, max_tokens=size.num_tokens, ignore_eos=True, logprobs=2)
        results = [result.outputs[0] for result in llm.generate(prompts, params, use_tqdm=False)]
        exact = isinstance(getattr(llm._engine._runner, "model", None), NativeRunner)
        return Answers([r.token_ids for r in results], [r.logprobs or [] for r in results], llm.stats, exact)


def differences(expected: Answers, found: Answers) -> list[str]:
    """Finds where answers part first, and by how much the model preferred its token there, in both runs."""
    lines = []
    for index, (a, b) in enumerate(zip(expected.tokens, found.tokens, strict=True)):
        if a != b:
            place = next(place for place, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
            margins = (_margin(run.logprobs[index][place]) for run in (expected, found))
            lines.append(f"request {index}, token {place}: margins " + " and ".join(f"{m:.1e}" for m in margins))
        elif expected.exact and expected.logprobs[index] != found.logprobs[index]:
            lines.append(f"request {index}: log-probabilities differ")
    return lines


def largest_change(expected: Answers, found: Answers) -> float:
    """Largest difference in the log-probability of a token, over all that are equal so far."""
    largest = 0.0
    for a, b in zip(expected.logprobs, found.logprobs, strict=True):
        for x, y in zip(a, b, strict=True):
            if x.token != y.token:
                break
            largest = max(largest, abs(x.logprob - y.logprob))
    return largest


def _margin(entry: TokenLogprob) -> float:
    return entry.top[0][1] - entry.top[1][1]


def _size(full: bool) -> Size:
    return Size(200, 32, 1100) if full else Size(16, 24, 300)


def _name(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())


@pytest.fixture(scope="module", params=["float32", "auto"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def plain(full: bool, dtype: str) -> Answers:
    """Answers one request at a time, without a cache."""
    return answer(_size(full), dtype, num_pages=NUM_PAGES, **variants(full)[0])


def test_cache_batch_and_chunks_change_no_answer(
    full: bool, dtype: str, plain: Answers, figures: Callable[[str], None]
) -> None:
    wrong: list[str] = []
    for options in variants(full)[1:]:
        found = answer(_size(full), dtype, num_pages=NUM_PAGES, **options)
        cached = found.stats.cached_tokens_total / found.stats.prompt_tokens_total
        figures(
            f"{_name(options)}: {len(different := differences(plain, found))} answers differ, "
            f"log-probabilities by {largest_change(plain, found):.1e} at most, {cached:.0%} of prompts cached"
        )
        assert (cached > 0.4) == options["enable_prefix_caching"], "the runs differ in nothing"
        wrong += [f"{_name(options)}: {line}" for line in different]
    assert wrong == []


def test_retraction_changes_no_answer(full: bool, dtype: str, plain: Answers, figures: Callable[[str], None]) -> None:
    size = _size(full)
    found = answer(size, dtype, num_pages=size.small_pool, max_num_seqs=64)
    share = found.stats.preemptions_total / size.num_requests
    figures(
        f"a pool of {size.small_pool} tokens: {share:.0%} retracted, {len(differences(plain, found))} answers differ, "
        f"log-probabilities by {largest_change(plain, found):.1e} at most"
    )
    assert share >= 0.3, "the pool is too large to test anything"
    assert differences(plain, found) == []


def test_a_difference_would_be_seen() -> None:
    def answers(tokens: Sequence[int]) -> Answers:
        entries = [TokenLogprob(token, -0.1, ((token, -0.1), (9, -0.35))) for token in tokens]
        return Answers([list(tokens)], [entries], EngineStats())

    assert differences(answers((1, 2, 3)), answers((1, 5, 3))) == ["request 0, token 1: margins 2.5e-01 and 2.5e-01"]
    exact = dataclasses.replace(answers((1,)), exact=True)
    moved = Answers([[1]], [[TokenLogprob(1, -0.2, ((1, -0.2), (9, -0.35)))]], EngineStats(), exact=True)
    assert differences(exact, moved) == ["request 0: log-probabilities differ"]
    assert differences(answers((1,)), moved) == []
