"""silu(gate) * up in Triton, against float64."""

from __future__ import annotations

import pytest
import torch

from ...support.triton_interpreter import DEVICE, HAS_GPU

from bough.kernels.decoder.silu import silu_multiply  # isort: skip  after the interpreter

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
SIZES = [(1, 1), (3, 7), (2, 1536), (1, 1024), (2, 3000), *([(8192, 12288), (70000, 40)] if HAS_GPU else [])]


def noise(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3).to(DEVICE, dtype)


def error(got: torch.Tensor, gate_up: torch.Tensor) -> float:
    gate, up = gate_up.double().chunk(2, dim=-1)
    right = gate * torch.sigmoid(gate) * up
    return float((got.double() - right).norm() / right.norm())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("num_rows", "size"), SIZES)
def test_silu_multiply(num_rows: int, size: int, dtype: torch.dtype) -> None:
    gate_up = noise(num_rows, 2 * size, dtype=dtype)
    kept = gate_up.clone()
    got = silu_multiply(gate_up)
    assert got.shape == (num_rows, size) and got.dtype == dtype
    assert error(got, gate_up) < TOLERANCE[dtype]
    assert torch.equal(gate_up, kept)


@pytest.mark.parametrize("shape", [(0, 16), (3, 0)])
def test_nothing_to_do(shape: tuple[int, int]) -> None:
    assert silu_multiply(torch.empty(shape, device=DEVICE)).shape == (shape[0], shape[1] // 2)


def test_nothing_beside_the_rows_is_read() -> None:
    around = torch.full((5, 77), float("nan"), device=DEVICE)
    gate_up = around[1:4, 3:63].copy_(noise(3, 60, dtype=torch.float32))
    assert error(silu_multiply(gate_up), gate_up) < 1e-5


def test_large_gates_neither_overflow_nor_vanish() -> None:
    gate_up = torch.tensor([[-1000.0, -89.0, 0.0, 1000.0, 2.0, 3.0, 4.0, 5.0]], device=DEVICE)
    got = silu_multiply(gate_up).cpu()
    assert torch.equal(got[0, [0, 2, 3]], torch.tensor([0.0, 0.0, 5000.0]))
    assert abs(float(got[0, 1])) < 1e-30


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_row_is_the_same_in_any_company(dtype: torch.dtype) -> None:
    gate_up = noise(5, 2 * 1100, dtype=dtype)
    together = silu_multiply(gate_up)
    for row in range(5):
        assert torch.equal(silu_multiply(gate_up[row : row + 1]), together[row : row + 1])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="gate_up must"):
        silu_multiply(noise(2, 7, dtype=torch.float32))
    with pytest.raises(ValueError, match="gate_up must"):
        silu_multiply(noise(2, 8, dtype=torch.float32).double())
