"""Rounding rows to int8 and fp8 equals the plain version; rows do not see each other."""

from __future__ import annotations

from ...support.triton_interpreter import DEVICE, HAS_GPU  # isort: skip  (before any kernel)

import pytest
import torch

from bough.kernels.linear import round_rows as triton_round_rows
from bough.kernels.linear.formats import quantise_rows_fp8, quantise_rows_int8
from bough.kernels.linear.round_rows import round_rows, scale_sums
from bough.kernels.linear.select import has_fp8

FP8 = torch.float8_e4m3fn
PLAIN = {torch.int8: quantise_rows_int8, FP8: quantise_rows_fp8}
DTYPES = [torch.int8, pytest.param(FP8, marks=pytest.mark.skipif(HAS_GPU and not has_fp8(DEVICE), reason="no fp8"))]


def make_rows(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    x = torch.full((rows, columns + 8), float("nan"), dtype=dtype)
    noise = torch.randn(rows, columns, generator=torch.Generator().manual_seed(columns))
    x[:, :columns] = (noise * torch.logspace(-2, 2, rows)[:, None]).to(dtype)
    return x.to(DEVICE)[:, :columns]


@pytest.mark.parametrize("to", DTYPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("columns", [1, 100, 576])
def test_equals_the_plain_version(columns: int, dtype: torch.dtype, to: torch.dtype) -> None:
    x = make_rows(5, columns, dtype)
    codes, scales = round_rows(x, to)
    expected, expected_scales = PLAIN[to](x)
    assert codes.dtype == to and torch.equal(scales, expected_scales)
    assert torch.equal(codes.float(), expected.float())


@pytest.mark.parametrize("to", DTYPES)
def test_rows_too_wide_to_hold(to: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_round_rows, "_WIDEST", 64)
    x = make_rows(3, 150, torch.bfloat16)
    codes, scales = round_rows(x, to)
    expected, expected_scales = PLAIN[to](x)
    assert torch.equal(codes.float(), expected.float()) and torch.equal(scales, expected_scales)


def test_halves_go_to_the_even_number() -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -127.0]], device=DEVICE)
    codes, _ = round_rows(x, torch.int8)
    assert codes.tolist() == [[127, 0, 2, 2, 0, -2, -127]]


def test_zeros_and_a_row_alone() -> None:
    x = make_rows(4, 96, torch.bfloat16).clone()
    x[1] = 0.0
    codes, scales = round_rows(x, torch.int8)
    assert not codes[1].any() and float(scales[1]) > 0
    alone, scale = round_rows(x[2:3], torch.int8)
    assert torch.equal(alone, codes[2:3]) and torch.equal(scale, scales[2:3])
    assert round_rows(x[:0], torch.int8)[0].shape == (0, 96)


@pytest.mark.parametrize("to", DTYPES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_stays_none(bad: float, to: torch.dtype) -> None:
    """The poisoned row shows in the logits; the other rows are as they were."""
    x = make_rows(3, 96, torch.bfloat16).clone()
    good = round_rows(x, to)[1]
    x[1, 40] = bad
    codes, scales = round_rows(x, to)
    assert not (codes[1].float() * scales[1]).isfinite().any()
    assert torch.equal(scales[::2], good[::2])


@pytest.mark.parametrize("with_bias", [True, False])
def test_scale_sums(with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    sums = torch.randint(-(1 << 20), 1 << 20, (3, 1100), generator=generator, dtype=torch.int32)
    x_scales, scales = torch.rand(3, generator=generator) / 32, torch.rand(1, 1100, generator=generator)
    bias = torch.randn(1100, generator=generator) if with_bias else None
    expected = sums.double() * x_scales[:, None].double() * scales.double()
    expected = expected if bias is None else expected + bias.double()
    dtype = torch.float16 if HAS_GPU else torch.float32
    bias = None if bias is None else bias.to(DEVICE)
    out = scale_sums(sums.to(DEVICE), x_scales.to(DEVICE), scales.to(DEVICE), bias, dtype).cpu()
    torch.testing.assert_close(out.double(), expected, rtol=2e-3 if HAS_GPU else 1e-6, atol=1e-2)
