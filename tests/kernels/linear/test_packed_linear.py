"""The linear layer over packed weights against float64: ragged shapes, all groups and zeros, splits, rows alone."""

from __future__ import annotations

from ...support.triton_interpreter import DEVICE, HAS_GPU  # isort: skip  (before any kernel)

import pytest
import torch

from bough.kernels.linear import packed_linear as triton_packed_linear
from bough.kernels.linear.formats import PackedWeight, dequantise, pack
from bough.kernels.linear.packed_linear import dequantise_packed, linear_packed
from bough.kernels.linear.tiles import MAX_SPLITS, choose_splits, make_counters

TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3}


def make_weight(
    rows: int,
    columns: int,
    group: int | None,
    *,
    bits: int = 4,
    zeros: str = "none",
    scale: torch.dtype = torch.float16,
) -> PackedWeight:
    generator = torch.Generator().manual_seed(rows * 7 + columns)
    groups = 1 if group is None else -(-columns // group)
    low, high = (0, 16) if bits == 4 else (-128, 128)
    codes = torch.randint(low, high, (rows, columns), generator=generator)
    scales = (torch.rand(groups, rows, generator=generator) * 0.1 + 0.01).to(scale)
    kinds = {
        "none": None,
        "codes": torch.randint(0, 16, (groups, rows), generator=generator, dtype=torch.uint8),
        "minimums": (torch.randn(groups, rows, generator=generator) * 0.5).to(scale),
    }
    return PackedWeight(pack(codes, bits, group), scales, kinds[zeros], bits, group, columns).to(DEVICE)


def make_rows(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of a wider tensor, whose other columns are poisoned: nothing may read them."""
    wide = torch.full((rows, columns + 16), float("nan"), dtype=dtype)
    wide[:, :columns] = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)).to(dtype)
    return wide.to(DEVICE)[:, :columns]


def run(
    x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None, *, invariant: bool = False
) -> torch.Tensor:
    arrived = make_counters(weight.shape[0], DEVICE)
    out = linear_packed(x, weight, bias, arrived, invariant=invariant)
    assert not arrived.any(), "the counters are 0 again"
    return out


def assert_close(out: torch.Tensor, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None) -> None:
    expected = x.double() @ dequantise(weight).double().t()
    if bias is not None:
        expected += bias.double()
    assert out.dtype == x.dtype and out.shape == expected.shape
    assert float((out.double() - expected).norm() / expected.norm()) < TOLERANCE[x.dtype] / 2


@pytest.mark.parametrize("zeros", ["none", "codes", "minimums"])
@pytest.mark.parametrize("group", [32, 64, 128, 256, None])
def test_groups_and_zeros(group: int | None, zeros: str) -> None:
    weight = make_weight(40, 512, group, zeros=zeros, scale=torch.float32 if zeros == "minimums" else torch.float16)
    x = make_rows(3, 512, torch.bfloat16)
    assert_close(run(x, weight), x, weight)


@pytest.mark.parametrize("zeros", ["none", "minimums"])
@pytest.mark.parametrize("group", [16, 32, 64, 128, None])
def test_eight_bits(group: int | None, zeros: str) -> None:
    weight = make_weight(40, 400, group, bits=8, zeros=zeros, scale=torch.float32)
    for dtype in (torch.bfloat16, torch.float16):
        x = make_rows(3, 400, dtype)
        assert_close(run(x, weight), x, weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("rows", "width", "columns", "group"),
    [(1, 1, 128, 128), (5, 130, 96, 32), (16, 129, 576, 64), (17, 67, 320, 128), (33, 65, 160, 32), (64, 64, 128, 64)],
)
def test_ragged_shapes(rows: int, width: int, columns: int, group: int, dtype: torch.dtype) -> None:
    weight = make_weight(width, columns, group, zeros="codes")
    x, bias = make_rows(rows, columns, dtype), torch.randn(width, dtype=dtype).to(DEVICE)
    assert_close(run(x, weight, bias), x, weight, bias)


@pytest.mark.parametrize(("rows", "group"), [(70, 128), (70, 32), (130, 128)])
def test_many_rows(rows: int, group: int) -> None:
    weight = make_weight(70, 192, group)
    x = make_rows(rows, 192, torch.bfloat16)
    assert_close(run(x, weight), x, weight)


@pytest.mark.parametrize(("rows", "group"), [(257, 128), (129, 32)])
def test_a_prompt_goes_through_the_whole_weight(rows: int, group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = make_weight(20, 256, group)
    x = make_rows(rows, 256, torch.bfloat16)
    monkeypatch.setattr(triton_packed_linear, "_linear", None)
    assert_close(run(x, weight), x, weight)


@pytest.mark.parametrize(("bits", "zeros"), [(4, "none"), (4, "codes"), (4, "minimums"), (8, "none"), (8, "minimums")])
@pytest.mark.parametrize(("group", "columns"), [(32, 160), (64, 128), (256, 512), (None, 200)])
def test_dequantise(group: int | None, columns: int, bits: int, zeros: str) -> None:
    weight = make_weight(70, columns, group, bits=bits, zeros=zeros)
    for dtype in (torch.bfloat16, torch.float16):
        # The GPU fuses the multiplication and the addition of a minimum, which rounds once instead of twice.
        tolerance = 1e-2 if zeros == "minimums" and HAS_GPU else 0
        torch.testing.assert_close(
            dequantise_packed(weight, dtype), dequantise(weight).to(dtype), rtol=tolerance, atol=0
        )


@pytest.mark.parametrize("num_rows", [16, 32, 60])
def test_a_row_does_not_depend_on_its_neighbours(num_rows: int) -> None:
    weight = make_weight(130, 512, 64, zeros="codes")
    x = make_rows(num_rows, 512, torch.bfloat16)
    together = run(x, weight)
    others = x.clone()
    others[1:] = torch.randn_like(others[1:]) * 100
    assert torch.equal(run(others, weight)[0], together[0])
    assert torch.equal(run(x[: num_rows - 5], weight), together[: num_rows - 5]), "fewer rows of the same tile"


def test_invariant_rows_are_the_same_in_every_batch() -> None:
    weight = make_weight(70, 256, 64)
    x = make_rows(140, 256, torch.bfloat16)
    whole = run(x, weight, invariant=True)
    assert_close(whole, x, weight)
    for start, stop in ((0, 1), (3, 20), (60, 130)):
        assert torch.equal(run(x[start:stop].clone(), weight, invariant=True), whole[start:stop])


def test_no_rows() -> None:
    assert run(make_rows(0, 128, torch.bfloat16), make_weight(8, 128, 32)).shape == (0, 8)


def test_splits_cover_every_block_once() -> None:
    seen = set()
    for tiles in (1, 5, 32, 96, 400):
        for blocks in (1, 2, 7, 32, 112):
            splits, each = choose_splits(tiles, blocks, 132, 16)
            assert 1 <= splits <= MAX_SPLITS and (splits - 1) * each < blocks <= splits * each
            seen.add(splits > 1)
    assert seen == {True, False}
    assert choose_splits(1000, 32, 132, 16)[0] == 1, "enough programs without"
