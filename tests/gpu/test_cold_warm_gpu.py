"""Promise of the deterministic mode: batch, cache, chunks, graphs and jumps change no token and no log-probability.

Not by a bit, and in bfloat16: here nothing is excused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bough.constrain.spec import GrammarSpec, Regex
from bough.runtime.protocol.request import TokenLogprob
from bough.runtime.protocol.sampling_params import SamplingParams

from .place import GPU, INTERPRETED, Place, Said, ask, greedy, make_prompts

PLAIN: dict[str, Any] = {"enable_prefix_caching": False, "max_num_seqs": 1, "max_batch_tokens": 512}
"""One request at a time, without a cache: what all others must equal."""

GPU_VARIANTS: list[dict[str, Any]] = [
    *(
        {"enable_prefix_caching": cached, "max_num_seqs": batch, "max_batch_tokens": chunk}
        for cached in (False, True)
        for batch in (1, 64)
        for chunk in (64, 512)
        if (cached, batch, chunk) != (False, 1, 512)
    ),
    {"cuda_graphs": False},
    {"overlap": False},
    {"cuda_graphs": False, "overlap": False, "enable_prefix_caching": False, "max_num_seqs": 3},
    {"jump_forward": False},
    {"num_pages": 400},  # much is put back, and computed again
]
CPU_VARIANTS: list[dict[str, Any]] = [
    {"max_num_seqs": 2},
    {"enable_prefix_caching": False, "max_num_seqs": 3, "max_batch_tokens": 7, "jump_forward": False},
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("place", [GPU])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_on_a_gpu(place: Place, dtype: str, model_of: Callable[[Place], Path]) -> None:
    _check(place, model_of(place), GPU_VARIANTS, dtype)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("place", [INTERPRETED])
def test_interpreted(place: Place, model_of: Callable[[Place], Path]) -> None:
    """Compares answers in float32, where nothing rounds a difference away."""
    _check(place, model_of(place), CPU_VARIANTS, "float32")


@pytest.mark.gpu
@pytest.mark.model
@pytest.mark.timeout(900)
@pytest.mark.parametrize("place", [GPU])
def test_a_trained_model(place: Place, default_model: Path) -> None:
    _check(place, default_model, GPU_VARIANTS, "bfloat16")


def _check(place: Place, source: Path, variants: list[dict[str, Any]], dtype: str) -> None:
    plain, _ = _answers(place, source, PLAIN, dtype)
    found: list[str] = []
    for options in variants:
        answers, cached = _answers(place, source, options, dtype)
        assert (cached > 0) == options.get("enable_prefix_caching", True), "the cache had no part in it"
        found += [f"{options}: {difference}" for difference in differences(plain, answers)]
    assert found == []


def _answers(place: Place, source: Path, options: dict[str, Any], dtype: str) -> tuple[list[Said], int]:
    """Answers greedy, seeded and constrained requests; also counts the tokens of their prompts that were cached."""
    prompts = make_prompts(place)
    params: list[SamplingParams] = []
    grammars: list[GrammarSpec | None] = []
    for index in range(len(prompts)):
        fields: dict[str, Any] = {"max_tokens": place.num_tokens, "ignore_eos": True, "logprobs": 2}
        kind = index % 3
        grammars.append(Regex("[0-9]{2}: (knight|night)[a-c]{3,9}") if kind == 2 else None)
        if kind == 1:
            params.append(SamplingParams(temperature=0.9, top_p=0.9, top_k=40, seed=index, **fields))
        else:
            params.append(greedy(place.num_tokens))
    with place.llm(source, deterministic=True, dtype=dtype, **options) as llm:
        return ask(llm, prompts, params, grammars), llm.stats.cached_tokens_total


def differences(expected: list[Said], found: list[Said]) -> list[str]:
    """Finds where answers part first: in a token, or in a bit of a log-probability."""
    lines = []
    for index, (a, b) in enumerate(zip(expected, found, strict=True)):
        if a != b:
            pairs = list(zip(a.logprobs, b.logprobs, strict=False))
            place = next((place for place, (x, y) in enumerate(pairs) if x != y), len(pairs))
            lines.append(f"request {index}, token {place}: {pairs[place : place + 1] or 'one is longer'}")
    return lines


def test_a_difference_would_be_seen() -> None:
    def said(*logprobs: float) -> Said:
        entries = [TokenLogprob(7, logprob, ((7, logprob), (9, -2.0))) for logprob in logprobs]
        return Said([7] * len(entries), entries, "length")

    plain = [said(-0.5, -0.25), said(-0.5, -0.25), said(-0.5)]
    assert differences(plain, plain) == []
    other = [plain[0], said(-0.5, float(np.nextafter(-0.25, 0))), said(-0.5, -0.5)]
    lines = differences(plain, other)
    assert [line.partition(": ")[0] for line in lines] == ["request 1, token 1", "request 2, token 1"]
    assert lines[1].endswith("one is longer")
