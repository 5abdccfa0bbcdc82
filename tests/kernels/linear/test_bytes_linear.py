"""The linear layer over rows of bytes against float64: integers to the bit, blocks of fp8, ragged shapes."""

from __future__ import annotations

from ...support.triton_interpreter import DEVICE, HAS_GPU  # isort: skip  (before any kernel)

import pytest
import torch

from bough.kernels.linear import bytes_linear as triton_bytes_linear
from bough.kernels.linear.bytes_linear import dequantise_bytes, linear_bytes
from bough.kernels.linear.bytes_linear import linear_rows_fp8 as linear_rows_fp8_gpu
from bough.kernels.linear.bytes_linear import linear_rows_int8 as linear_rows_int8_triton
from bough.kernels.linear.formats import ByteWeight, dequantise, linear_rows_int8, quantise_rows_int8
from bough.kernels.linear.select import has_fp8
from bough.kernels.linear.tiles import make_counters

FP8 = torch.float8_e4m3fn
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3}
needs_fp8 = pytest.mark.skipif(HAS_GPU and not has_fp8(DEVICE), reason="the GPU has no fp8")


def noise(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(shape[0])).to(dtype).to(DEVICE)


def make_weight(rows: int, columns: int, dtype: torch.dtype, group: int | None = None) -> ByteWeight:
    generator = torch.Generator().manual_seed(rows)
    if dtype == torch.int8:
        codes = torch.randint(-127, 128, (rows, columns), generator=generator).to(torch.int8)
    else:
        codes = torch.randn(rows, columns, generator=generator).mul(50).to(FP8)
    scales = torch.rand(1 if group is None else -(-columns // group), rows, generator=generator) + 0.1
    return ByteWeight(codes, scales, group).to(DEVICE)


SHAPES = [(1, 1, 128), (5, 130, 96), (16, 129, 576), (17, 67, 320), (33, 65, 160), (70, 70, 192)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "width", "columns"), SHAPES)
def test_integers(rows: int, width: int, columns: int, dtype: torch.dtype) -> None:
    weight, x, bias = (
        make_weight(width, columns, torch.int8),
        noise(rows, columns, dtype=dtype),
        noise(width, dtype=dtype),
    )
    arrived = make_counters(width, DEVICE)
    out = linear_rows_int8_triton(x, weight, bias, arrived)
    codes, scales = quantise_rows_int8(x)
    sums = (codes.double() @ weight.codes.double().t()).float()
    expected = sums * (scales[:, None] * weight.scales) + bias.float()
    assert out.dtype == dtype and not arrived.any()
    assert float((out.double() - expected.double()).norm() / expected.double().norm()) < TOLERANCE[dtype] / 2
    torch.testing.assert_close(out, linear_rows_int8(x, weight, bias), rtol=TOLERANCE[dtype], atol=1e-3)


def test_integer_rows_are_the_same_in_every_batch() -> None:
    weight, x = make_weight(72, 256, torch.int8), noise(100, 256, dtype=torch.bfloat16)
    arrived = make_counters(72, DEVICE)
    whole = linear_rows_int8_triton(x, weight, None, arrived)
    for start, stop in ((0, 1), (3, 20), (40, 90)):
        assert torch.equal(linear_rows_int8_triton(x[start:stop], weight, None, arrived), whole[start:stop])


@needs_fp8
@pytest.mark.parametrize("group", [128, 256, None])
@pytest.mark.parametrize(("rows", "width", "columns"), [(3, 40, 512), *SHAPES[1:]])
def test_fp8(rows: int, width: int, columns: int, group: int | None) -> None:
    weight, x = make_weight(width, columns, FP8, group), noise(rows, columns, dtype=torch.bfloat16)
    bias, arrived = noise(width, dtype=torch.bfloat16), make_counters(width, DEVICE)
    expected = x.double() @ dequantise(weight).double().t() + bias.double()
    for invariant in (False, True):
        out = linear_bytes(x, weight, bias, arrived, invariant=invariant)
        assert float((out.double() - expected).norm() / expected.norm()) < TOLERANCE[torch.bfloat16] / 2
    assert not arrived.any()


@needs_fp8
def test_fp8_rows_are_independent() -> None:
    weight, x, arrived = make_weight(70, 384, FP8, 128), noise(30, 384, dtype=torch.bfloat16), make_counters(70, DEVICE)
    together = linear_bytes(x, weight, None, arrived)
    others = torch.cat([x[:1], x[1:] * 100])
    assert torch.equal(linear_bytes(others, weight, None, arrived)[0], together[0])
    whole = linear_bytes(x, weight, None, arrived, invariant=True)
    assert torch.equal(linear_bytes(x[7:9], weight, None, arrived, invariant=True), whole[7:9])


@needs_fp8
def test_a_prompt_goes_through_the_whole_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = make_weight(20, 200, FP8, 128), noise(257, 200, dtype=torch.bfloat16)
    monkeypatch.setattr(triton_bytes_linear, "_linear_bytes", None)
    out = linear_bytes(x, weight, None, make_counters(20, DEVICE))
    expected = x.double() @ dequantise(weight).double().t()
    assert float((out.double() - expected).norm() / expected.norm()) < TOLERANCE[torch.bfloat16]


@needs_fp8
@pytest.mark.parametrize("group", [128, None])
def test_dequantise(group: int | None) -> None:
    weight = make_weight(70, 200, FP8, group)
    assert torch.equal(dequantise_bytes(weight, torch.bfloat16), dequantise(weight).bfloat16())


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="torch multiplies fp8 by rows on a GPU only")
@needs_fp8
@pytest.mark.parametrize("rows", [1, 7, 64, 300])
def test_fp8_by_fp8(rows: int) -> None:
    weight, x = make_weight(128, 256, FP8), noise(rows, 256, dtype=torch.bfloat16)
    bias = noise(128, dtype=torch.bfloat16)
    expected = x.double() @ dequantise(weight).double().t() + bias.double()
    out = linear_rows_fp8_gpu(x, weight, bias)
    assert float((out.double() - expected).norm() / expected.norm()) < 0.04


def test_no_rows() -> None:
    x = noise(1, 128, dtype=torch.bfloat16)[:0]
    assert linear_rows_int8_triton(x, make_weight(8, 128, torch.int8), None, make_counters(8, DEVICE)).shape == (0, 8)
