"""What is asked of a row of logits, with the library in C and without."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bough.kernels.native.library import load_library
from bough.kernels.sampling import host_sampling


@pytest.fixture(params=["library", "numpy"], autouse=True)
def means(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numpy":
        monkeypatch.setattr(host_sampling, "load_library", lambda: None)
    elif load_library() is None:
        pytest.skip("the library in C was not built")


@pytest.mark.parametrize("size", [1, 7, 8, 16, 17, 100, 1023, 49152])
def test_the_peak_is_the_first_of_the_largest(size: int) -> None:
    rng = np.random.default_rng(size)
    for _ in range(20):
        line = rng.integers(-5, 5, size).astype(np.float32)
        assert host_sampling.peak(line) == line.argmax()
        assert host_sampling.peak(line[::-1]) == line[::-1].argmax()


@pytest.mark.parametrize("fault", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("size", [1, 8, 33, 500])
def test_what_is_not_finite_has_no_peak(size: int, fault: float) -> None:
    for place in range(0, size, 3):
        line = np.ones(size, np.float32)
        line[place] = fault
        with np.errstate(invalid="ignore"):
            assert host_sampling.peak(line) == -1


@pytest.mark.parametrize("size", [1, 7, 8, 16, 17, 1023, 1024, 1025, 49152])
def test_the_logarithm_of_the_sum_of_exponentials(size: int) -> None:
    line = np.random.default_rng(size).normal(0.0, 6.0, size).astype(np.float32)
    line[1::5] = -np.inf
    wide = line.astype(np.float64)
    expected = wide.max() + math.log(np.exp(wide - wide.max()).sum())
    assert host_sampling.log_sum_exp(line) == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("fault", [math.nan, math.inf])
def test_nothing_is_the_sum_of_what_is_not_finite(fault: float) -> None:
    assert math.isnan(host_sampling.log_sum_exp(np.array([0.0, fault], np.float32)))
    assert math.isnan(host_sampling.log_sum_exp(np.full(3, -np.inf, np.float32)))
