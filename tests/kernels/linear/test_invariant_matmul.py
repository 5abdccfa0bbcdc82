"""The batch-invariant product: right, and every row the same to the bit in whatever company it comes."""

from __future__ import annotations

import pytest
import torch

from ...support.triton_interpreter import DEVICE, HAS_GPU

from bough.kernels.linear.invariant_matmul import NARROW, TALL_FROM, invariant_linear  # isort: skip  after the interpreter

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
DTYPES = list(TOLERANCE)


def noise(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).to(DEVICE)


def error(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> float:
    """Norm of the error by norm of the right answer, which is computed in float64."""
    right = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    return float((out.double() - right).norm() / right.norm())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("num_rows", "width", "num_terms"),
    [(1, 64, 128), (3, 130, 200), (64, 64, 256), (65, 72, 17), (16, 1, 1), (130, 200, 48)],
)
def test_the_product(dtype: torch.dtype, num_rows: int, width: int, num_terms: int) -> None:
    x, weight = noise(num_rows, num_terms, dtype=dtype), noise(width, num_terms, dtype=dtype, seed=1)
    bias = noise(width, dtype=dtype, seed=2)
    assert error(invariant_linear(x, weight), x, weight) < TOLERANCE[dtype]
    assert error(invariant_linear(x, weight, bias), x, weight, bias) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_in_any_company(dtype: torch.dtype) -> None:
    num_terms, width, largest = (4096, 4096, 2 * TALL_FROM + 3) if HAS_GPU else (200, 130, 131)
    x, weight = noise(largest, num_terms, dtype=dtype), noise(width, num_terms, dtype=dtype, seed=1)
    everything = invariant_linear(x, weight)
    order = torch.randperm(largest, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    assert torch.equal(invariant_linear(x[order], weight), everything[order]), "its place matters"
    for num_rows in (1, 2, 15, 64, 65):
        for first in (0, largest - num_rows):
            some = invariant_linear(x[first : first + num_rows], weight)
            assert torch.equal(some, everything[first : first + num_rows]), f"{num_rows} rows from {first}"


def test_a_row_is_the_same_among_few_and_among_many() -> None:
    """Many rows are computed in tiles of another height."""
    num_terms, width = (4096, 4096) if HAS_GPU else (136, 40)
    x, weight = noise(TALL_FROM, num_terms, dtype=torch.bfloat16), noise(width, num_terms, dtype=torch.bfloat16, seed=1)
    many = invariant_linear(x, weight)
    for first, stop in ((0, 1), (63, 66), (TALL_FROM - 2, TALL_FROM), (0, TALL_FROM - 1)):
        assert torch.equal(invariant_linear(x[first:stop], weight), many[first:stop])


@pytest.mark.parametrize("num_rows", [2, TALL_FROM])
def test_wide_weights(num_rows: int) -> None:
    if num_rows > 2 and not HAS_GPU:
        pytest.skip("takes a minute in the interpreter")
    x = noise(num_rows, 40, dtype=torch.bfloat16)
    weight = noise(NARROW + 1, 40, dtype=torch.bfloat16, seed=1)
    out = invariant_linear(x, weight)
    assert error(out, x, weight) < TOLERANCE[torch.bfloat16]
    assert torch.equal(invariant_linear(x[1:2], weight), out[1:2])


def test_what_is_not_part_of_the_arguments_is_neither_read_nor_written() -> None:
    wide = torch.full((6, 100), float("nan"), device=DEVICE)
    x = wide[1:4, 8:49]  # its rows lie apart, with poison between them
    x.copy_(noise(3, 41, dtype=torch.float32))
    weights = torch.full((74, 41), float("nan"), device=DEVICE)
    weight = weights[2:72]
    weight.copy_(noise(70, 41, dtype=torch.float32, seed=1))
    outs = torch.full((5, 70), float("nan"), device=DEVICE)
    invariant_linear(x, weight, out=outs[1:4])
    assert error(outs[1:4], x, weight) < 1e-5
    assert outs[0].isnan().all() and outs[4].isnan().all()


def test_a_row_that_is_not_finite_spoils_no_other() -> None:
    x, weight = noise(5, 33, dtype=torch.bfloat16), noise(20, 33, dtype=torch.bfloat16, seed=1)
    clean = invariant_linear(x, weight)
    x[2, 7] = float("nan")
    x[3, 1] = float("inf")
    out = invariant_linear(x, weight)
    assert out[2].isnan().all() and not out[3].isfinite().any()
    assert torch.equal(out[[0, 1, 4]], clean[[0, 1, 4]])


def test_no_rows() -> None:
    empty = torch.empty((0, 24), device=DEVICE)
    assert invariant_linear(empty, torch.ones((8, 24), device=DEVICE)).shape == (0, 8)
