"""The CPU library draws the tokens and log-probabilities of runtime.sampler.torch_sampler."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import numpy as np
import pytest

from bough.kernels.native.library import Library
from bough.kernels.native.threads import Threads
from bough.kernels.sampling.reference import ONE
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.runtime.sampler.native_sampler import NativeSampler
from bough.runtime.sampler.rows import Draws, Row
from bough.runtime.sampler.torch_sampler import TorchSampler

from ...support.sampling import assert_close, seed_of

NUMBERS: dict[str, tuple[float, list[Any]]] = {
    "top_k": (0.4, [-1, 1, 2, 5, 50, 300, 5000, 2**31 - 1]),
    "top_p": (0.5, [0.0, 1e-12, 0.05, 0.5, 0.6, 0.95, 0.999, 1 - 1e-9]),
    "min_p": (0.3, [1e-9, 0.01, 0.2, 1.0]),
    "frequency_penalty": (0.2, [-2.0, 1.5]),
    "presence_penalty": (0.2, [-1.0, 0.7]),
    "repetition_penalty": (0.2, [0.01, 1.3, 10.0]),
    "logprobs": (0.2, [0, 1, 5, 20]),
}
"""Fields of SamplingParams: how often they are set, and to what."""
SHAPES = ("normal", "ties", "level", "not finite", "huge", "zeros")


@pytest.fixture
def sampler(native_library: Library) -> NativeSampler:
    return NativeSampler(native_library, Threads(native_library, 2))


def logits_of(shape: str, size: int, generator: np.random.Generator, rng: random.Random) -> np.ndarray:
    with np.errstate(over="ignore"):
        logits = generator.normal(0.0, rng.choice([0.02, 1.0, 3.0, 10.0]), (rng.choice([1, 3, 12]), size))
        logits = (logits * (1e37 if shape == "huge" else 1.0)).astype(np.float32)
    if shape == "ties":
        logits = np.round(logits)
    elif shape == "level":
        logits[:] = logits[:, :1]
    elif shape == "not finite":
        logits[0, rng.randrange(size)] = rng.choice([math.nan, math.inf, -math.inf])
    elif shape == "zeros":  # of both signs
        logits[logits < 0] = -0.0
        logits[:, ::3] = 0.0
    return logits


def masks_of(size: int, generator: np.random.Generator) -> np.ndarray:
    """That allow no, few, half and most tokens."""
    bits = np.zeros((4, -(-size // 32) * 32), np.uint8)
    bits[:, :size] = generator.random((4, size)) < np.array([[0.0], [3 / size], [0.5], [0.97]])
    return np.packbits(bits, axis=1, bitorder="little").view(np.int32)


def row_of(size: int, generator: np.random.Generator, rng: random.Random) -> Row:
    def some(count: int) -> tuple[int, ...]:
        return tuple(generator.choice(size, min(size, count), replace=False).tolist())

    options = {name: rng.choice(values) for name, (often, values) in NUMBERS.items() if rng.random() < often}
    options["temperature"] = rng.choice([0.0, 1.0, 0.8, 0.3, 3.0, 100.0, 1e-300, 1e-6])
    if rng.random() < 0.1:
        options["logit_bias"] = {token: rng.uniform(-100.0, 100.0) for token in some(5)}
    fields: dict[str, Any] = {"seed": seed_of(rng.choice([0.0, 1 - 2.0**-53]))}
    if rng.random() < 0.6:
        fields = {"seed": rng.getrandbits(64), "position": rng.getrandbits(rng.randint(1, 63))}
    if rng.random() < 0.3:
        fields["counts"] = {token: rng.randrange(1, 5) for token in some(9)}
    if rng.random() < 0.3:
        fields["seen"] = some(9)
    if rng.random() < 0.2:
        fields["banned"] = some(2)
    if rng.random() < 0.4:
        fields["masked"] = rng.randrange(4)
    if rng.random() < 0.05:
        fields |= {"target": rng.randrange(size), "others": some(2) if rng.random() < 0.5 else ()}
    return Row(SamplingParams(**options), **fields)


def check(sampler: NativeSampler, logits: np.ndarray, rows: list[Row], masks: np.ndarray | None = None) -> Draws:
    expected = TorchSampler().sample(logits, rows, masks)
    found = sampler.sample(logits.copy(), rows, masks)
    assert found.poisoned == expected.poisoned
    for index, row in enumerate(rows):
        if not found.poisoned[index]:
            assert found.tokens[index] == expected.tokens[index], row
            assert_close(found.logprobs[index], expected.logprobs[index])
    return found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [1, 2, 7, 16, 17, 33, 64, 300, 1000, 5000, 49152])
def test_draws_are_those_of_torch(sampler: NativeSampler, shape: str, size: int) -> None:
    """All combinations of all that a row may ask for, by chance; those of a size differ."""
    rng = random.Random(f"{shape} {size}")
    generator = np.random.default_rng(rng.randrange(2**32))
    for _ in range(3 if size > 10000 else 12):
        logits = logits_of(shape, size, generator, rng)
        rows = [row_of(size, generator, rng) for _ in logits]
        if shape == "huge":  # which a penalty makes infinite: test_a_penalty_past_the_smallest_number_forbids
            rows = [msgspec.structs.replace(row, seen=()) for row in rows]
        check(sampler, logits, rows, masks_of(size, generator))


def test_tokens_seen_may_come_in_any_order(sampler: NativeSampler) -> None:
    logits = np.random.default_rng(0).normal(size=(1, 500)).astype(np.float32)
    seen = random.Random(0).sample(range(500), 200)
    params = SamplingParams(temperature=0.7, repetition_penalty=1.3, logprobs=20)
    one, other = (sampler.sample(logits.copy(), [Row(params, seen=of)], None) for of in (seen, np.sort(seen)))
    assert one == other


@pytest.mark.parametrize("temperature", [0.1, 0.8, 1.0, 1.7])
def test_weights_are_those_of_numpy(sampler: NativeSampler, temperature: float) -> None:
    """To 1 of 2^42: two tokens' running sum is asked for right below and above the first one's weight."""
    lower = np.linspace(-29.0 * temperature, 0.0, 200, dtype=np.float32)
    logits = np.stack([lower, np.zeros_like(lower)], axis=1)
    params = SamplingParams(temperature=temperature)
    exact = np.exp(lower.astype(np.float64) / float(np.float32(temperature))) * ONE
    for moved, token in ((-2, 0), (1, 1)):
        rows, asked = [], []
        for index, weight in enumerate(exact.astype(np.int64).tolist()):
            if 0 <= weight + moved < weight + ONE:
                bits = -(-((weight + moved) << 53) // (weight + ONE))
                rows.append(Row(params, seed=seed_of(bits / 2**53)))
                asked.append(index)
        assert len(rows) > 190
        assert sampler.sample(logits[asked], rows, None).tokens == [token] * len(rows)


def test_of_a_nearly_level_vocabulary_any_part_may_be_kept(sampler: NativeSampler) -> None:
    """More than the first look at the likeliest finds."""
    logits = np.random.default_rng(4).normal(0.0, 0.3, (8, 20000)).astype(np.float32)
    for top_p in (0.01, 0.3, 0.9, 0.9999):
        check(sampler, logits, [Row(SamplingParams(top_p=top_p), seed=seed_of(index / 8)) for index in range(8)])


def test_one_token_of_a_row_or_a_thousand_rows(sampler: NativeSampler) -> None:
    logits = np.random.default_rng(5).normal(0.0, 3.0, (1000, 40)).astype(np.float32)
    rows = [Row(SamplingParams(top_p=0.9), seed=seed_of(index / 1000)) for index in range(1000)]
    together = check(sampler, logits, rows)
    assert [
        sampler.sample(logits[i : i + 1].copy(), rows[i : i + 1], None).tokens[0] for i in range(1000)
    ] == together.tokens
    assert sampler.sample(logits[:0], [], None) == Draws([], [], [])


def test_tokens_that_the_model_lacks_are_refused(sampler: NativeSampler) -> None:
    params = SamplingParams(temperature=0.0, logit_bias={30: 1.0})
    with pytest.raises(IndexError, match=r"0 \.\. 29"):
        sampler.sample(np.zeros((1, 30), np.float32), [Row(params)], None)


@pytest.mark.parametrize("size", [1, 7, 8, 16, 17, 100, 1023, 49152])
def test_the_likeliest_is_the_first_of_the_largest(sampler: NativeSampler, size: int) -> None:
    logits = np.random.default_rng(size).integers(-5, 5, (40, size)).astype(np.float32)
    rows = [Row(SamplingParams(temperature=0.0))] * len(logits)
    assert sampler.sample(logits.copy(), rows, None).tokens == logits.argmax(axis=1).tolist()


@pytest.mark.parametrize("fault", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("size", [1, 8, 33, 500])
def test_what_is_not_finite_is_found_anywhere(sampler: NativeSampler, size: int, fault: float) -> None:
    places = range(0, size, 3)
    logits = np.ones((len(places), size), np.float32)
    for row, place in enumerate(places):
        logits[row, place] = fault
    for params in (SamplingParams(temperature=0.0), SamplingParams(), SamplingParams(logprobs=2)):
        assert all(sampler.sample(logits.copy(), [Row(params)] * len(places), None).poisoned)


@pytest.mark.parametrize("size", [2, 7, 8, 16, 17, 1023, 1024, 1025, 49152])
def test_log_probabilities_to_two_parts_in_a_million(sampler: NativeSampler, size: int) -> None:
    """Log-probabilities of what the model says, and where a mask leaves four of five tokens."""
    line = np.random.default_rng(size).normal(0.0, 6.0, size).astype(np.float32)
    allowed = np.arange(size) % 5 != 1
    bits = np.zeros(-(-size // 32) * 32, np.uint8)
    bits[:size] = allowed
    masks = np.packbits(bits, bitorder="little").view(np.int32)[None]
    row = Row(SamplingParams(temperature=0.0, logprobs=1), masked=0)
    draws = sampler.sample(line[None].copy(), [row], masks)
    (token,), (found,) = draws.tokens, draws.logprobs
    wide = line.astype(np.float64)
    assert found is not None and found.masked is not None
    assert found.logprob == pytest.approx(wide[token] - np.log(np.exp(wide).sum()), abs=2e-6)
    assert found.masked == pytest.approx(wide[token] - np.log(np.exp(wide[allowed]).sum()), abs=2e-6)


def test_a_penalty_past_the_smallest_number_forbids(sampler: NativeSampler) -> None:
    """It is the model's own logits that must be finite."""
    params = SamplingParams(temperature=0.0, repetition_penalty=10.0)
    logits = np.array([[-3e38, 1.0, -3e37]], np.float32)
    draws = sampler.sample(logits, [Row(params, seen=(0,))], None)
    assert draws.tokens == [1] and draws.poisoned == [False]
