"""RMSNorm in Triton: against float64, in place where it says so, and each row as if it were alone."""

from __future__ import annotations

import pytest
import torch

from ...support.triton_interpreter import DEVICE, HAS_GPU

from bough.kernels.decoder.norm import add_rms_norm, rms_norm  # isort: skip  after the interpreter

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
SIZES = [(1, 1), (3, 7), (5, 576), (2, 1024), (1, 5120), (2, 16384), *([(8192, 4096)] if HAS_GPU else [])]
EPS = 1e-5


def noise(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def error(got: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> float:
    wide = x.double()
    right = wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()
    return float((got.double() - right).norm() / right.norm())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("num_rows", "size"), SIZES)
def test_rms_norm(num_rows: int, size: int, dtype: torch.dtype) -> None:
    x, weight = noise(num_rows, size, dtype=dtype), noise(size, dtype=dtype, seed=1)
    kept = x.clone()
    got = rms_norm(x, weight, EPS)
    assert got.shape == x.shape and got.dtype == dtype
    assert error(got, x, weight) < TOLERANCE[dtype]
    assert torch.equal(x, kept)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("num_rows", "size"), SIZES)
def test_add_rms_norm(num_rows: int, size: int, dtype: torch.dtype) -> None:
    hidden, delta = noise(num_rows, size, dtype=dtype), noise(num_rows, size, dtype=dtype, seed=2)
    weight = noise(size, dtype=dtype, seed=1)
    expected = hidden.clone()
    expected += delta
    kept = delta.clone()
    got = add_rms_norm(hidden, delta, weight, EPS)
    assert torch.equal(hidden, expected)  # rounded as torch rounds it
    assert torch.equal(delta, kept)
    assert error(got, hidden, weight) < TOLERANCE[dtype]


def test_no_rows() -> None:
    x, weight = noise(0, 64, dtype=torch.float32), noise(64, dtype=torch.float32)
    assert rms_norm(x, weight, EPS).shape == (0, 64)
    assert add_rms_norm(x, x.clone(), weight, EPS).shape == (0, 64)


@pytest.mark.parametrize("size", [100, 128])
def test_nothing_beside_the_rows_is_read_or_written(size: int) -> None:
    around = torch.full((5, size + 29), float("nan"), device=DEVICE)
    hidden, other = around[1:4, 5 : size + 5], torch.full_like(around, float("nan"))
    hidden.copy_(noise(3, size, dtype=torch.float32))
    delta = other[1:4, 9 : size + 9].copy_(noise(3, size, dtype=torch.float32, seed=2))
    weight = noise(size, dtype=torch.float32, seed=1)
    got = add_rms_norm(hidden, delta, weight, EPS)
    assert error(got, hidden, weight) < 1e-5
    assert int(around.isnan().sum()) == around.numel() - hidden.numel()
    assert error(rms_norm(hidden, weight, EPS), hidden, weight) < 1e-5


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", [48, 576, 4096])
def test_a_row_is_the_same_in_any_company(size: int, dtype: torch.dtype) -> None:
    num_rows = 4099 if HAS_GPU else 6
    hidden, delta = noise(num_rows, size, dtype=dtype), noise(num_rows, size, dtype=dtype, seed=2)
    weight = noise(size, dtype=dtype, seed=1)
    before = hidden.clone()
    together = add_rms_norm(hidden, delta, weight, EPS)
    plain = rms_norm(before, weight, EPS)
    for row in (0, 3, num_rows - 1):
        one = slice(row, row + 1)
        alone = before[one].clone()
        assert torch.equal(add_rms_norm(alone, delta[one], weight, EPS), together[one])
        assert torch.equal(alone, hidden[one])
        assert torch.equal(rms_norm(before[one], weight, EPS), plain[one])


def test_large_half_precision_numbers_are_squared_in_float32() -> None:
    x = torch.full((2, 8), 300.0, dtype=torch.float16, device=DEVICE)  # 300^2 is past the largest float16
    assert torch.equal(rms_norm(x, torch.ones_like(x[0]), 1e-6), torch.ones_like(x))


def test_what_does_not_fit_is_refused() -> None:
    x, weight = noise(2, 8, dtype=torch.float32), noise(8, dtype=torch.float32)
    with pytest.raises(ValueError, match="16- or 32-bit"):
        rms_norm(x.double(), weight.double(), EPS)
    with pytest.raises(ValueError, match="weight must"):
        rms_norm(x, weight[:4], EPS)
    with pytest.raises(ValueError, match="16384"):
        rms_norm(noise(1, 16385, dtype=torch.float32), weight, EPS)
    with pytest.raises(ValueError, match="delta must"):
        add_rms_norm(x, x[:1], weight, EPS)
