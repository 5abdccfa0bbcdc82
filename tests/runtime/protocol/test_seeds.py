"""Random numbers: known answers of the generator, range, spread, and no relation between seeds or positions."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bough.runtime.protocol.sampling_params import _mix, derive

from ...support.sampling import seed_of, splitmix, uniform

SEEDS = st.integers(-(2**63), 2**64 - 1)


def test_known_answers() -> None:
    """The first outputs of SplitMix64 from seed 0: each call of the generator adds the golden gamma to its state."""
    gamma = 0x9E3779B97F4A7C15
    for step in (_mix, splitmix):
        outputs = [step(i * gamma & (2**64 - 1)) for i in range(3)]
        assert outputs == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@given(SEEDS, st.integers(0, 2**31))
def test_uniform_is_in_the_unit_interval_and_a_function_of_seed_and_position(seed: int, position: int) -> None:
    value = uniform(seed, position)
    assert 0.0 <= value < 1.0
    assert value == uniform(seed, position)
    assert value == uniform(seed % 2**64, position)
    assert value != uniform(seed, position + 1)
    assert value != uniform(seed + 1, position)


@given(st.integers(0, 2**53 - 1))
def test_each_number_has_a_seed(bits: int) -> None:
    assert uniform(seed_of(bits / 2**53), 0) == bits / 2**53


def chi_square(values: np.ndarray, bins: int) -> float:
    counts = np.histogram(values, bins=bins, range=(0.0, 1.0))[0]
    expected = len(values) / bins
    return float(((counts - expected) ** 2 / expected).sum())


def test_uniforms_are_spread_evenly() -> None:
    """Along positions, along seeds, along samples: 99 degrees of freedom, so about 99 with a deviation of 14."""
    by_position = np.array([uniform(42, position) for position in range(20_000)])
    by_seed = np.array([uniform(seed, 7) for seed in range(20_000)])
    by_sample = np.array([uniform(derive(5, index), 7) for index in range(20_000)])
    for values in (by_position, by_seed, by_sample):
        assert chi_square(values, 100) < 99 + 5 * 14
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.03
    assert abs(np.corrcoef(by_position, by_seed)[0, 1]) < 0.03
    assert abs(np.corrcoef(by_seed, by_sample)[0, 1]) < 0.03


@given(SEEDS)
def test_the_first_sample_has_the_seed_itself(seed: int) -> None:
    assert derive(seed, 0) == seed % 2**64
    assert uniform(derive(seed, 0), 3) == uniform(seed, 3)


def test_samples_have_seeds_of_their_own() -> None:
    made = [derive(seed, index) for seed, index in itertools.product(range(100), range(100))]
    assert len(set(made)) == len(made)
    assert all(0 <= seed < 2**64 for seed in made)
