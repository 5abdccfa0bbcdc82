"""Layouts and rounding of quantised weights, and their products, against arithmetic written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bough.kernels.linear.formats import (
    ByteWeight,
    PackedWeight,
    dequantise,
    linear_dequantised,
    linear_rows_fp8,
    linear_rows_int8,
    pack,
    quantise_bytes,
    quantise_int4,
    quantise_int4_minimums,
    quantise_int8,
    quantise_rows_fp8,
    quantise_rows_int8,
    unpack,
)
from bough.kernels.linear.select import select_product

FP8 = torch.float8_e4m3fn


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def error(weight: PackedWeight | ByteWeight, exact: torch.Tensor) -> float:
    return float((dequantise(weight) - exact.float()).norm() / exact.float().norm())


@pytest.mark.parametrize("columns", [1, 31, 128, 130, 384])
@pytest.mark.parametrize(
    ("bits", "group"), [(4, 32), (4, 128), (4, None), (8, 16), (8, 32), (8, 64), (8, 128), (8, None)]
)
def test_codes_come_back(bits: int, group: int | None, columns: int) -> None:
    low, high = (0, 16) if bits == 4 else (-128, 128)
    codes = torch.randint(low, high, (5, columns), generator=torch.Generator().manual_seed(columns))
    scales = torch.ones(1 if group is None else -(-columns // group), 5)
    weight = PackedWeight(pack(codes, bits, group), scales, None, bits, group, columns)
    assert torch.equal(unpack(weight).long(), codes)


def test_where_a_code_lies() -> None:
    codes = torch.zeros(2, 256, dtype=torch.int64)
    codes[1, 128 + 32 * 2 + 2 * 5 + 1] = 9  # block 1, part 2, word 5, upper half
    words = pack(codes, 4, 64)
    assert words.shape == (2, 2, 16)
    assert words[1, 1, 5] == 9 << (16 + 4 * 2) and words.count_nonzero() == 1
    codes[1, 128 + 32 * 2 + 2 * 5 + 1] = -3
    words = pack(codes, 8, 32)  # blocks of 64 columns, parts of 32
    assert words.shape == (4, 2, 16)
    assert int(words[3, 1, 5]) & 0xFFFFFFFF == (256 - 3) << 16 and words.count_nonzero() == 1


def test_numbers_of_each_kind_of_zero() -> None:
    codes = torch.arange(16).repeat(2, 4)
    scales = torch.tensor([[0.5, 2.0], [0.25, 1.0]])
    words = pack(codes, 4, 32)
    by_row = scales.repeat_interleave(32, dim=0).t()
    plain = PackedWeight(words, scales, None, 4, 32, 64)
    assert torch.equal(dequantise(plain), (codes - 8) * by_row)
    zeros = torch.tensor([[3, 0], [15, 8]], dtype=torch.uint8)
    spread = zeros.float().repeat_interleave(32, dim=0).t()
    assert torch.equal(dequantise(PackedWeight(words, scales, zeros, 4, 32, 64)), (codes - spread) * by_row)
    minimums = torch.tensor([[-1.0, 0.5], [3.0, 0.0]])
    spread = minimums.repeat_interleave(32, dim=0).t()
    assert torch.equal(dequantise(PackedWeight(words, scales, minimums, 4, 32, 64)), codes * by_row + spread)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_int4_error_by_group(dtype: torch.dtype) -> None:
    exact = noise(48, 576).to(dtype)
    errors = [error(quantise_int4(exact, group), exact) for group in (32, 64, 128, 256)]
    assert errors == sorted(errors) and 0.07 < errors[0] < 0.085 and errors[-1] < 0.11
    symmetric = quantise_int4(exact, 64, symmetric=True)
    assert symmetric.zeros is None and errors[1] < error(symmetric, exact) < 0.11
    assert symmetric.scales.dtype == dtype


def test_int4_takes_a_range_that_is_no_worse_than_the_whole() -> None:
    exact = noise(8, 128)
    exact[0, 0] = 8.0
    weight = quantise_int4(exact, 128)
    scale = (exact.amax(1) - exact.amin(1)) / 15
    zero = (-exact.amin(1) / scale).round()
    codes = (exact / scale[:, None] + zero[:, None]).round().clamp(0, 15)
    whole = (codes - zero[:, None]) * scale[:, None]
    squares = (dequantise(weight) - exact).square().sum(1)
    assert bool((squares <= (whole - exact).square().sum(1) * 1.0001).all())
    assert float(squares[0]) < float((whole - exact).square().sum(1)[0]), "an outlier is cut off"


def test_int4_with_minimums_keeps_levels_that_are_there_already() -> None:
    codes = torch.randint(0, 16, (6, 64), generator=torch.Generator().manual_seed(1))
    codes[:, ::32], codes[:, 1::32] = 0, 15
    scales, minimums = (noise(2, 6, seed=seed).half().abs() + 0.5 for seed in (2, 3))
    held = PackedWeight(pack(codes, 4, 32), scales, -minimums, 4, 32, 64)
    made = quantise_int4_minimums(dequantise(held), 32)
    assert torch.equal(unpack(made), unpack(held))
    torch.testing.assert_close(dequantise(made), dequantise(held), rtol=1e-3, atol=1e-3)


def test_int4_with_minimums_loses_less_than_with_zeros() -> None:
    weight = noise(16, 256)
    assert error(quantise_int4_minimums(weight, 32), weight) < error(quantise_int4(weight.half(), 32), weight) < 0.1
    outliers = weight + 4.0  # far from zero, which need not be a level
    assert error(quantise_int4_minimums(outliers, 32), outliers) < 0.8 * error(quantise_int4(outliers, 32), outliers)


@pytest.mark.parametrize("value", [0.0, 3.0, -3.0])
def test_constant_weights_survive(value: float) -> None:
    exact = torch.full((3, 160), value)
    for weight in (
        quantise_int4(exact, 32),
        quantise_int4(exact, 32, symmetric=True),
        quantise_int4_minimums(exact, 32),
        quantise_int8(exact),
    ):
        torch.testing.assert_close(dequantise(weight), exact, rtol=2e-2, atol=0)


def test_rows_by_their_own_scale() -> None:
    exact = noise(16, 200) * torch.logspace(-3, 3, 16)[:, None]
    for weight, bound in (
        (quantise_int8(exact), 0.01),
        (quantise_bytes(exact, torch.int8), 0.01),
        (quantise_bytes(exact, FP8), 0.03),
    ):
        relative = (dequantise(weight) - exact).norm(dim=1) / exact.norm(dim=1)
        assert float(relative.max()) < bound
    codes, scales = quantise_rows_int8(exact)
    assert codes.abs().amax(1).tolist() == [127] * 16 and bool((scales > 0).all())
    codes, _ = quantise_rows_fp8(exact)
    assert codes.float().abs().amax(1).tolist() == [448.0] * 16
    assert not quantise_rows_fp8(torch.zeros(2, 4))[0].float().any()


def test_products() -> None:
    x, exact, bias = noise(5, 96), noise(7, 96, seed=1), noise(7, seed=2)
    weight = quantise_int4(exact, 32)
    torch.testing.assert_close(linear_dequantised(x, weight, bias), x @ dequantise(weight).t() + bias)
    for product, round_rows, dtype in (
        (linear_rows_int8, quantise_rows_int8, torch.int8),
        (linear_rows_fp8, quantise_rows_fp8, FP8),
    ):
        plain = quantise_bytes(exact, dtype)
        codes, scales = round_rows(x)
        expected = (codes.double() * scales[:, None].double()) @ dequantise(plain).double().t() + bias
        torch.testing.assert_close(product(x, plain, bias).double(), expected, rtol=1e-5, atol=1e-4)
        assert float((product(x, plain) - x @ exact.t()).norm() / (x @ exact.t()).norm()) < 0.05


def test_a_block_of_fp8_has_its_own_scale() -> None:
    codes, scales = noise(3, 300).to(FP8), torch.rand(3, 3) + 0.5
    spread = scales.t().repeat_interleave(128, dim=1)[:, :300]
    assert torch.equal(dequantise(ByteWeight(codes, scales, 128)), codes.float() * spread)


def test_selected_on_the_cpu_are_the_plain_products() -> None:
    x, bytes_weight, packed = noise(4, 64), quantise_bytes(noise(6, 64), torch.int8), quantise_int4(noise(6, 64), 32)
    assert torch.equal(select_product(packed, x.dtype)(x, None), linear_dequantised(x, packed))
    rounded = select_product(bytes_weight, x.dtype, rounds_rows=True)(x, None)
    assert torch.equal(rounded, linear_rows_int8(x, bytes_weight))
    assert torch.equal(select_product(bytes_weight, x.dtype)(x, None), linear_dequantised(x, bytes_weight))
    with pytest.raises(ValueError, match="ByteWeight"):
        select_product(packed, x.dtype, rounds_rows=True)


@pytest.mark.parametrize(
    ("changes", "blamed"),
    [
        ({"bits": 3}, "bits"),
        ({"group": 48}, "48"),
        ({"group": 16}, "16"),
        ({"words": torch.zeros(1, 2, 16)}, "int32"),
        ({"words": torch.zeros(2, 2, 16, dtype=torch.int32)}, "words"),
        ({"scales": torch.ones(2, 2)}, "scales"),
        ({"scales": torch.ones(4, 2, dtype=torch.int32)}, "scales"),
        ({"zeros": torch.ones(4, 2, dtype=torch.int8)}, "zeros"),
    ],
)
def test_malformed_weights_are_refused(changes: dict[str, Any], blamed: str) -> None:
    fields: dict[str, Any] = {
        "words": torch.zeros(1, 2, 16, dtype=torch.int32),
        "scales": torch.ones(4, 2),
        "zeros": None,
    }
    with pytest.raises(ValueError, match=blamed):
        PackedWeight(**({"bits": 4, "group": 32, "num_columns": 128} | fields | changes))
