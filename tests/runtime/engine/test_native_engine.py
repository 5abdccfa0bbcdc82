"""The CPU library in a whole engine: whatever the cache, the batch and the chunks, an answer is the same to the bit."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bough.kernels.native.library import Library
from bough.runtime.client.llm import LLM
from bough.runtime.protocol.counters import EngineStats
from bough.runtime.protocol.request import TokenLogprob
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.runtime.runner.native_runner import NativeRunner

from ...support.tiny_model import write_tiny_model

Answer = tuple[list[int], list[TokenLogprob]]
SHAPE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
NUM_REQUESTS, NUM_TOKENS = 24, 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, native_library: Library) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("wide"), **SHAPE)


def prompts() -> list[list[int]]:
    """A tree of shared prefixes; some are a prefix and nothing more."""
    random = Random(5)

    def text(length: int) -> list[int]:
        return [random.randrange(32, 127) for _ in range(length)]

    roots = [text(70) for _ in range(2)]
    stems = [root + text(30) for root in roots for _ in range(3)]
    return [stems[i % 6] + text(random.choice((0, 1, 9, 40))) for i in range(NUM_REQUESTS)]


def sampling() -> list[SamplingParams]:
    fixed: dict[str, Any] = {"max_tokens": NUM_TOKENS, "ignore_eos": True, "logprobs": 2}
    return [SamplingParams(temperature=float(i % 2), seed=i, **fixed) for i in range(NUM_REQUESTS)]


def ask(folder: Path, kind: str, *, rounds: int = 1, **options: Any) -> tuple[list[Answer], EngineStats]:
    """All requests at once, `rounds` times; the last round's answers."""
    gc.collect()
    with contextlib.closing(LLM(str(folder), quantization=kind, **({"num_pages": 8000} | options))) as llm:
        runner: Any = llm._engine._runner
        assert isinstance(runner.model, NativeRunner)
        for _ in range(rounds):
            results = [result.outputs[0] for result in llm.generate(prompts(), sampling(), use_tqdm=False)]
        return [(r.token_ids, r.logprobs or []) for r in results], llm.stats


@pytest.fixture(scope="module", params=["int8", "int4"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def alone(folder: Path, kind: str) -> Sequence[Answer]:
    """One request at a time, without a cache."""
    answers, stats = ask(folder, kind, enable_prefix_caching=False, max_num_seqs=1)
    assert stats.cached_tokens_total == 0
    assert len({tuple(tokens) for tokens, _ in answers}) > NUM_REQUESTS // 2, "they are too much alike to test anything"
    return answers


@pytest.mark.parametrize(
    "options",
    [
        {"enable_prefix_caching": False},
        {"max_num_seqs": 1},
        {},
        {"rounds": 2},
        {"max_batch_tokens": 16},
        {"max_batch_tokens": 37, "page_size": 16, "num_pages": 500},
    ],
    ids=["batch", "cache", "both", "warm", "chunks", "pages"],
)
def test_company_cache_and_chunks_change_no_answer(
    folder: Path, kind: str, alone: Sequence[Answer], options: dict[str, Any]
) -> None:
    answers, stats = ask(folder, kind, **options)
    assert answers == alone
    assert (stats.cached_tokens_total > 0) == options.get("enable_prefix_caching", True)


def test_retraction_changes_no_answer(folder: Path, kind: str, alone: Sequence[Answer]) -> None:
    answers, stats = ask(folder, kind, num_pages=420)
    assert stats.preemptions_total > 3, "the pool is too large to test anything"
    assert answers == alone
