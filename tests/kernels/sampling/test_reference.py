"""The plain sampler against brute force, and statistics of its draws."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.kernels.sampling.reference import (
    NONE_ALLOWED,
    NOT_FINITE,
    SampleRows,
    SampleTables,
    sample_rows,
    uniform_bits,
)
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.runtime.sampler.rows import Row

from ...support.sampling import host_sampler, uniform
from .brute_sampler import Draw, adjusted, chi_square, distribution, right_tokens, tensors

VOCAB = 300


def logits_of(seed: int, rows: int, size: int = VOCAB) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * 3


def tokens_of(logits: torch.Tensor, draws: list[Draw]) -> list[int]:
    rows, tables = tensors(draws, logits.shape[1], "cpu")
    out = torch.full((len(draws),), -9)
    sample_rows(logits, rows, tables, out)
    return out.tolist()


def test_random_numbers_are_those_of_the_runtime() -> None:
    rng = random.Random(1)
    for _ in range(1000):
        seed, position = rng.getrandbits(64), rng.getrandbits(rng.randint(1, 63))
        assert uniform_bits(seed, position) * 2.0**-53 == uniform(seed, position)
        assert uniform_bits(seed - 2**64, position) == uniform_bits(seed, position)


draws = st.builds(
    Draw,
    temperature=st.sampled_from([0.0, 1e-35, 1e-3, 0.5, 1.0, 3.0, 100.0, 1e30]),
    top_k=st.sampled_from([0, 0, 1, 2, 7, 40, 69, 70, 71, 1000]),
    top_p=st.one_of(st.just(1.0), st.floats(0.0, 1.0, width=32)),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 1.0, width=32)),
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**62),
    repetition=st.sampled_from([0.7, 1.0, 1.3]),
    frequency=st.sampled_from([-0.3, 0.0, 0.7]),
    presence=st.sampled_from([-1.0, 0.0, 0.3]),
    counts=st.one_of(st.none(), st.dictionaries(st.integers(0, 69), st.integers(0, 9), max_size=9)),
    prompt=st.lists(st.integers(0, 69), max_size=9).map(tuple),
    allowed=st.one_of(st.none(), st.lists(st.integers(0, 69), unique=True).map(tuple)),
    bias=st.dictionaries(st.integers(0, 69), st.sampled_from([-np.inf, -3.0, 1.0, 5.0]), max_size=6),
)


@settings(max_examples=300, deadline=None)
@given(draw=draws, seed=st.integers(0, 2**31), coarse=st.booleans())
def test_any_row_against_brute_force(draw: Draw, seed: int, coarse: bool) -> None:
    """Coarse logits have many ties."""
    logits = logits_of(seed, 1, 70)
    logits = logits.round() if coarse else logits
    assert tokens_of(logits, [draw])[0] in right_tokens(logits[0], draw)


@pytest.mark.parametrize("top_p", [0.5, 0.99, 1.0 - 2.0**-20])
def test_a_nucleus_larger_than_the_first_look(top_p: float) -> None:
    logits = logits_of(2, 4, 9000) / 3
    batch = [Draw(top_p=top_p, seed=seed) for seed in range(4)]
    for token, row, draw in zip(tokens_of(logits, batch), logits, batch, strict=True):
        assert token in right_tokens(row, draw)


CASES = {
    "plain": Draw(temperature=0.8),
    "top_k": Draw(top_k=12),
    "top_p": Draw(top_p=0.8),
    "min_p": Draw(min_p=0.05, temperature=1.5),
    "all": Draw(top_k=30, top_p=0.9, min_p=0.01),
    "masked": Draw(top_p=0.95, allowed=tuple(range(1, 64, 2)), bias={3: -np.inf, 5: 2.0}),
}


@pytest.mark.parametrize("case", CASES)
def test_draws_follow_the_distribution(case: str) -> None:
    logits = logits_of(11, 1, 64) / 2
    batch = [Draw(**{**vars(CASES[case]), "seed": 7, "position": position}) for position in range(3000)]
    tokens = tokens_of(logits.expand(3000, -1), batch)
    assert chi_square(tokens, distribution(adjusted(logits[0], batch[0]), batch[0]))


def test_chi_square_can_fail() -> None:
    logits = logits_of(11, 1, 64) / 2
    tokens = tokens_of(logits.expand(3000, -1), [Draw(temperature=0.8, position=i) for i in range(3000)])
    assert not chi_square(tokens, distribution(adjusted(logits[0], Draw()), Draw(temperature=0.9)))


def test_the_same_tokens_as_the_runtime_without_filters() -> None:
    logits = logits_of(5, 200)
    batch = [Draw(temperature=0.9 * (i % 4 > 0), seed=i, position=3) for i in range(200)]
    rows = [Row(SamplingParams(temperature=d.temperature), seed=d.seed, position=d.position) for d in batch]
    assert tokens_of(logits, batch) == host_sampler().sample(logits.clone().numpy(), rows, None).tokens


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_cannot_be_drawn(bad: float) -> None:
    logits = logits_of(4, 3)
    logits[0, 299] = bad
    batch = [Draw(temperature=0.0), Draw(allowed=(), counts={}), Draw(allowed=(299,), bias={299: -np.inf})]
    rows, tables = tensors(batch, VOCAB, "cpu")
    before = [table.clone() for table in (tables.counts, tables.last_token) if table is not None]
    out = torch.zeros(3, dtype=torch.int64)
    sample_rows(logits, rows, tables, out)
    assert out.tolist() == [NOT_FINITE, NONE_ALLOWED, NONE_ALLOWED]
    assert tables.counts is not None and tables.counts.equal(before[0])
    assert tables.last_token is not None and tables.last_token.equal(before[1])


def test_counts_saturate_and_padding_stays() -> None:
    logits = torch.zeros(4, VOCAB)
    logits[:, 8] = 50.0
    batch = [Draw(0.0, counts={8: times}, prompt=prompt) for times in (1, 32767) for prompt in ((), (8,))]
    rows, tables = tensors([*batch, Draw(temperature=-1.0, counts={})], VOCAB, "cpu")
    out = torch.full((5,), -9)
    sample_rows(torch.cat([logits, logits[:1] * torch.nan]), rows, tables, out)
    assert out.tolist() == [8, 8, 8, 8, -9]
    assert tables.counts is not None and tables.last_token is not None
    assert [int(tables.counts[5 - row, 8]) for row in range(5)] == [2, 2 - 2**15, 32767, -1, 0]
    assert tables.last_token.tolist() == [-5, -5, 8, 8, 8, 8]


def test_rows_need_no_tables() -> None:
    logits = logits_of(6, 2)
    out = torch.full((2,), -9)
    sample_rows(logits, SampleRows.greedy(2, "cpu"), SampleTables(), out)
    assert out.tolist() == logits.argmax(1).tolist()
