"""The sampler against a plain float64 reference, statistics of its draws, and rows that know nothing of each other."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest
import torch

from bough.kernels.native.library import load_library
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.runtime.sampler.rows import Draws, Row
from bough.runtime.sampler.torch_sampler import TorchSampler

from ...support.sampling import assert_close, host_sampler, seed_of, uniform

VOCAB = 300
WORDS = -(-VOCAB // 32)


def sample(logits: torch.Tensor, rows: list[Row], masks: np.ndarray | None) -> Draws:
    """Returns what is drawn in torch, which is what the CPU library draws if there is one."""
    draws = TorchSampler().sample(logits.numpy(), rows, masks)
    if load_library() is not None:
        library = host_sampler().sample(logits.numpy().copy(), rows, masks)
        assert library.poisoned == draws.poisoned
        for index in [index for index, bad in enumerate(draws.poisoned) if not bad]:
            assert rows[index].target is not None or library.tokens[index] == draws.tokens[index]
            assert_close(library.logprobs[index], draws.logprobs[index])
    return draws


def logits_of(seed: int, rows: int = 1, size: int = VOCAB) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * 3


def pack(allowed: list[int], words: int = WORDS) -> np.ndarray:
    bits = np.zeros(words * 32, dtype=np.uint8)
    bits[allowed] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def adjusted(logits: torch.Tensor, row: Row, masks: np.ndarray | None) -> np.ndarray:
    """The row's logits after penalties, bias, bans and mask, in float64, token by token."""
    params = row.params
    values = logits.double().numpy().copy()
    for token in range(len(values)):
        if token in row.seen:
            factor = params.repetition_penalty
            values[token] = values[token] / factor if values[token] > 0 else values[token] * factor
        times = row.counts.get(token, 0)
        values[token] -= params.frequency_penalty * times + (params.presence_penalty if times else 0.0)
        values[token] += (params.logit_bias or {}).get(token, 0.0)
        if token in row.banned:
            values[token] = -math.inf
        if row.masked is not None:
            assert masks is not None
            if not (int(masks[row.masked, token // 32]) % 2**32) >> (token % 32) & 1:
                values[token] = -math.inf
    return values


def distribution(values: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Probabilities after temperature, top-k, top-p of what is left, and min-p."""
    scaled = (values - values.max()) / params.temperature
    weights = np.exp(scaled)
    order = np.argsort(-weights, kind="stable")
    keep = params.top_k if params.top_k and params.top_k > 0 else len(weights)
    chosen = np.zeros(len(weights), dtype=bool)
    chosen[order[:keep]] = True
    weights = np.where(chosen, weights, 0.0)
    weights /= weights.sum()
    before = np.cumsum(weights[order]) - weights[order]
    passed = np.zeros(len(weights), dtype=bool)
    passed[order] = (before < params.top_p) if params.top_p < 1.0 else True
    passed &= weights >= params.min_p * weights.max()
    passed[order[0]] = True
    weights = np.where(passed, weights, 0.0)
    return weights / weights.sum()


def distribution_at(logits: torch.Tensor, params: SamplingParams, token: int) -> float:
    """Probability that a token would have if it were kept."""
    values = logits[0].double().numpy()
    kept = distribution(values, params) > 0
    weights = np.exp((values - values.max()) / params.temperature)
    return float(weights[token] / weights[kept].sum())


def expected_tokens(values: np.ndarray, row: Row) -> set[int]:
    """The token that inversion in the order of the ids gives; both neighbours of a border the number falls on."""
    if row.params.greedy:
        return {int(values.argmax())}
    probabilities = distribution(values, row.params)
    cumulative = np.cumsum(probabilities)
    last = int(np.flatnonzero(probabilities)[-1])
    found = set()
    number = uniform(row.seed, row.position)
    for wanted in (number - 1e-5, number, number + 1e-5):
        index = int(np.searchsorted(cumulative, min(max(wanted, 0.0), 1.0 - 1e-12), side="right"))
        found.add(min(index, last))
    return found


def check(logits: torch.Tensor, rows: list[Row], masks: np.ndarray | None = None) -> Draws:
    """Draws, and compares tokens and log-probabilities with the reference."""
    before = logits.clone()
    draws = sample(logits, rows, masks)
    assert draws.poisoned == [False] * len(rows)
    for index, row in enumerate(rows):
        raw = before[index].double().log_softmax(0)
        entry = draws.logprobs[index]
        if row.target is not None:
            assert entry is not None
            assert entry.token == row.target
            assert entry.logprob == pytest.approx(float(raw[row.target]), abs=1e-4)
            assert entry.masked is None
            continue
        values = adjusted(before[index], row, masks)
        token = draws.tokens[index]
        assert token in expected_tokens(values, row)
        assert values[token] > -math.inf
        if row.params.logprobs is None:
            assert entry is None
            continue
        assert entry is not None
        assert entry.token == token
        assert entry.logprob == pytest.approx(float(raw[token]), abs=1e-4)
        top = raw.topk(row.params.logprobs)
        assert [t for t, _ in entry.top] == top.indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(top.values.tolist(), abs=1e-4)
        final = torch.from_numpy(values).log_softmax(0)[token]
        assert entry.masked == pytest.approx(float(final), abs=1e-4)
    return draws


OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "plain": {"temperature": 1.0},
    "cool": {"temperature": 0.3},
    "hot": {"temperature": 3.0},
    "top_k": {"top_k": 5},
    "all_k": {"top_k": -1},
    "one": {"top_k": 1},
    "top_p": {"top_p": 0.6},
    "top_p_0": {"top_p": 0.0},
    "min_p": {"min_p": 0.2},
    "min_p_1": {"min_p": 1.0},
    "frequency": {"frequency_penalty": 1.5},
    "presence": {"presence_penalty": -1.0},
    "repetition": {"repetition_penalty": 1.7},
    "bias": {"logit_bias": {3: 6.0, 4: -100.0}},
    "logprobs_0": {"logprobs": 0},
    "logprobs": {"logprobs": 7},
}
ROWS: dict[str, dict[str, Any]] = {
    "counts": {"counts": {1: 3, 7: 1, 299: 2}},
    "seen": {"seen": (0, 1, 7, 64, 299)},
    "banned": {"banned": (2, 257)},
    "masked": {"masked": 1},
}
MASKS = np.stack([pack([1]), pack([i for i in range(VOCAB) if i % 3]), pack([7, 250])])


@pytest.mark.parametrize("first", OPTIONS)
def test_every_pair_of_options(first: str) -> None:
    """Each with each other, with all that a row can bring, at several random numbers, in one batch."""
    rng = random.Random(first)
    rows = []
    for second in OPTIONS:
        try:
            params = SamplingParams(**(OPTIONS[first] | OPTIONS[second]))
        except ValueError:
            continue
        for chosen in itertools.chain([()], itertools.combinations(ROWS, 2)):
            fields: dict[str, Any] = {}
            for name in chosen:
                fields |= ROWS[name]
            rows.append(Row(params, seed=seed_of(rng.random()), **fields))
    check(logits_of(len(first), len(rows)), rows, MASKS)


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(top_p=0.7), SamplingParams(top_k=9, min_p=0.01)])
@pytest.mark.parametrize("number", [0.0, 1e-12, 0.5, 1.0 - 2.0**-53])
def test_the_ends_of_the_unit_interval(params: SamplingParams, number: float) -> None:
    """Tokens without probability are drawn at neither end."""
    logits = logits_of(3)
    logits[0, :5] = logits[0, -5:] = -1e4
    check(logits, [Row(params, seed=seed_of(number))])


CHI_SQUARE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({"temperature": 0.8}, {}),
    "top_k": ({"top_k": 12}, {}),
    "top_p": ({"top_p": 0.8}, {}),
    "min_p": ({"min_p": 0.05, "temperature": 1.5}, {}),
    "all three": ({"top_k": 30, "top_p": 0.9, "min_p": 0.01}, {}),
    "masked and banned": ({"top_p": 0.95}, {"masked": 0, "banned": (3,)}),
}


@pytest.mark.parametrize("case", CHI_SQUARE)
def test_draws_follow_the_distribution(case: str) -> None:
    """Chi-square over 4,000 independent random numbers."""
    options, fields = CHI_SQUARE[case]
    size, count = 64, 4000
    params = SamplingParams(**options)
    masks = np.stack([pack([i for i in range(size) if i % 2], 2)])
    logits = logits_of(11, 1, size) / 2
    rng = random.Random(case)
    rows = [Row(params, seed=seed_of(rng.random()), **fields) for _ in range(count)]
    probabilities = distribution(adjusted(logits[0], rows[0], masks), params)
    draws = sample(logits.repeat(count, 1), rows, masks)
    counts = np.bincount(draws.tokens, minlength=size)
    assert not counts[probabilities == 0].any()
    often = probabilities * count >= 5
    expected, seen = probabilities[often] * count, counts[often]
    expected, seen = np.append(expected, count - expected.sum()), np.append(seen, count - seen.sum())
    statistic = float(((seen - expected) ** 2 / np.maximum(expected, 1e-9))[expected > 1].sum())
    degrees = int((expected > 1).sum()) - 1
    assert degrees >= 4
    assert statistic < degrees + 5 * math.sqrt(2 * degrees)


def test_a_row_alone_is_the_row_in_a_batch() -> None:
    """Bit for bit, log-probabilities included, wherever in the batch it stands."""
    rng = random.Random(0)
    kinds = [
        SamplingParams(**(OPTIONS[a] | OPTIONS[b]))
        for a, b in itertools.product(("plain", "top_k", "top_p", "min_p", "greedy"), ("logprobs", "bias", "cool"))
    ]
    rows = [Row(params, seed=seed_of(rng.random()), masked=index % 2 or None) for index, params in enumerate(kinds)]
    rows.append(Row(SamplingParams(), target=9))
    logits = logits_of(5, len(rows))
    together = sample(logits.clone(), rows, MASKS)
    order = rng.sample(range(len(rows)), len(rows))
    shuffled = sample(logits[order].clone(), [rows[i] for i in order], MASKS)
    for place, index in enumerate(order):
        alone = sample(logits[index : index + 1].clone(), [rows[index]], MASKS)
        for draws, at in ((alone, 0), (shuffled, place)):
            assert draws.tokens[at] == together.tokens[index]
            assert draws.logprobs[at] == together.logprobs[index]


def test_greedy_logprobs_targets_and_masks_in_one_batch() -> None:
    greedy = SamplingParams(temperature=0.0, logprobs=3)
    rows = [
        Row(greedy),
        Row(greedy, masked=2),
        Row(greedy, target=17, masked=None),
        Row(SamplingParams(max_tokens=0, temperature=0.0), target=0),
        Row(SamplingParams(temperature=0.0, logprobs=0)),
        Row(SamplingParams(logprobs=20, top_k=3), seed=seed_of(0.99)),
    ]
    draws = check(logits_of(8, len(rows)), rows, MASKS)
    assert draws.tokens[1] in (7, 250)
    first, target = draws.logprobs[0], draws.logprobs[2]
    assert first is not None and target is not None
    assert [len(entry.top) for entry in draws.logprobs if entry is not None] == [3, 3, 3, 0, 0, 20]


def test_the_only_token_that_a_mask_allows_has_probability_one() -> None:
    draws = check(logits_of(2), [Row(SamplingParams(logprobs=1), seed=seed_of(0.3), masked=0)], MASKS)
    assert draws.tokens == [1]
    assert draws.logprobs[0] is not None
    assert draws.logprobs[0].masked == pytest.approx(0.0, abs=1e-6)
    assert draws.logprobs[0].logprob < -0.1


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("params", [SamplingParams(temperature=0.0), SamplingParams(), SamplingParams(top_p=0.5)])
def test_a_row_that_is_not_finite_is_told_and_harms_no_other(number: float, params: SamplingParams) -> None:
    rows = [Row(params, seed=seed_of(0.4), masked=1), Row(params, seed=seed_of(0.4)), Row(params, seed=seed_of(0.4))]
    logits = logits_of(4, 3)
    alone = sample(logits[2:].clone(), rows[2:], MASKS)
    logits[0, 4] = logits[1, 4] = number
    draws = sample(logits, rows, MASKS)
    assert draws.poisoned == [True, True, False]
    assert draws.tokens[2] == alone.tokens[0]


def test_a_target_in_a_row_that_is_not_finite_is_told() -> None:
    logits = logits_of(4)
    logits[0, 0] = math.nan
    assert sample(logits, [Row(SamplingParams(), target=3)], None).poisoned == [True]


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"logprobs": 2}, {"top_k": 2}])
def test_a_mask_that_allows_nothing_is_told(options: dict[str, Any]) -> None:
    params = SamplingParams(**options)
    masks = np.stack([pack([]), pack([3])])
    draws = sample(
        logits_of(4, 2), [Row(params, masked=0, seed=seed_of(0.5)), Row(params, masked=1, seed=seed_of(0.5))], masks
    )
    assert draws.poisoned == [True, False]
    assert draws.tokens[1] == 3


BIG = 5000


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(top_k=1500),
        SamplingParams(top_k=1024),
        SamplingParams(top_k=BIG),
        SamplingParams(top_k=BIG * 2, top_p=0.5),
        SamplingParams(top_k=2000, top_p=0.999),
        SamplingParams(top_p=0.9),  # nearly flat: far more than the first candidates are needed
        SamplingParams(top_p=0.05),
        SamplingParams(min_p=0.9),
        SamplingParams(min_p=1e-4),
        SamplingParams(top_p=0.99, min_p=0.5),
    ],
    ids=str,
)
@pytest.mark.parametrize("scale", [0.02, 3.0])
def test_vocabularies_larger_than_the_first_candidates(params: SamplingParams, scale: float) -> None:
    numbers = [0.0, 0.1, 0.5, 0.9, 0.999]
    logits = logits_of(6, 1, BIG) * scale
    draws = sample(logits.repeat(5, 1), [Row(params, seed=seed_of(number)) for number in numbers], None)
    probabilities = distribution(logits[0].double().numpy(), params)
    cumulative = np.cumsum(probabilities)
    lightest = probabilities[probabilities > 0].min()
    for number, token in zip(numbers, draws.tokens, strict=True):
        # Rounding may let one more token in at the very border.
        assert probabilities[token] > 0 or distribution_at(logits, params, token) >= 0.999 * lightest
        below = cumulative[token - 1] if token else 0.0
        assert below - 1e-3 <= number <= cumulative[token] + 1e-3


@pytest.mark.parametrize("temperature", [1e-300, 1e-44, 1e-30, 1e-6])
@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}, {"top_k": 4}, {"min_p": 0.1}])
def test_a_temperature_next_to_zero_is_greedy(temperature: float, options: dict[str, Any]) -> None:
    logits = logits_of(9, 3) * 20
    best = logits.argmax(dim=1).tolist()
    params = SamplingParams(temperature=temperature, **options)
    draws = sample(logits, [Row(params, seed=seed_of(u)) for u in (0.0, 0.5, 0.999)], None)
    assert draws.tokens == best


def test_huge_logits_do_not_overflow() -> None:
    logits = torch.tensor([[3e38, 1.0, -3e38], [-1e30, -1e30, -1e30]])
    draws = sample(logits, [Row(SamplingParams(temperature=0.01), seed=seed_of(0.7))] * 2, None)
    assert draws.tokens == [0, 2]


def test_frequency_and_presence_count_generated_tokens_only() -> None:
    logits = torch.tensor([[1.0, 0.9, 0.0]])
    penalties = SamplingParams(temperature=0.0, frequency_penalty=0.05, presence_penalty=0.0)
    assert sample(logits.clone(), [Row(penalties, seen=(0,))], None).tokens == [0]
    assert sample(logits.clone(), [Row(penalties, counts={0: 1})], None).tokens == [0]
    assert sample(logits.clone(), [Row(penalties, counts={0: 3})], None).tokens == [1]


def test_tokens_seen_may_come_in_any_order() -> None:
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 500)).astype(np.float32))
    seen = random.Random(0).sample(range(500), 200)
    params = SamplingParams(temperature=0.7, repetition_penalty=1.3, logprobs=20)
    one, other = (sample(logits.clone(), [Row(params, seen=of)], None) for of in (seen, np.sort(seen)))
    assert one == other


def test_the_repetition_penalty_lowers_logits_of_either_sign() -> None:
    params = SamplingParams(temperature=0.0, repetition_penalty=2.0)
    assert sample(torch.tensor([[-1.0, -1.5]]), [Row(params, seen=(0,))], None).tokens == [1]
    assert sample(torch.tensor([[1.0, 0.6]]), [Row(params, seen=(0,))], None).tokens == [1]


def test_the_logits_of_no_rows() -> None:
    assert sample(torch.empty(0, VOCAB), [], None) == Draws([], [], [])


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.5])
def test_masks_that_allow_few_tokens(temperature: float) -> None:
    """The CPU library draws from these alone."""
    rng = random.Random(2)
    rows, allowed = [], []
    for index in range(60):
        options: dict[str, Any] = rng.choice([{}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.1}, {"logprobs": 2}])
        options |= {"logit_bias": {7: 3.0}} if index % 5 == 0 else {}
        params = SamplingParams(temperature=temperature, **options)
        allowed.append(rng.sample(range(VOCAB), rng.choice([1, 1, 2, 5, 40, VOCAB])))
        rows.append(Row(params, seed=seed_of(rng.random()), masked=index if index % 6 else None, banned=(3,)))
    masks = np.stack([pack(tokens) for tokens in allowed])
    masks[13] = pack([3])  # allowed, but banned
    masks[14] = 0
    logits = logits_of(9, len(rows))
    logits[15, 5] = math.nan
    draws = sample(logits, rows, masks)
    assert [index for index, bad in enumerate(draws.poisoned) if bad] == [13, 14, 15]
    for index, (token, row, bad) in enumerate(zip(draws.tokens, rows, draws.poisoned, strict=True)):
        assert bad or row.masked is None or token in allowed[index]
