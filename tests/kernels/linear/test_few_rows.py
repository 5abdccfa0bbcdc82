"""Products of few rows against float64: ragged shapes, shared sums, gates, and which configuration serves what."""

from __future__ import annotations

from ...support.triton_interpreter import DEVICE  # isort: skip  (before any kernel)

from dataclasses import replace

import pytest
import torch

from bough.kernels.decoder import reference
from bough.kernels.linear import few_rows
from bough.kernels.linear.few_rows import Config, FewRows, choose, choose_normed, classify, multiply, multiply_normed
from bough.kernels.linear.select import select_few_rows
from bough.kernels.linear.tiles import Tile, make_counters

DTYPES = [torch.bfloat16, torch.float16]
TOLERANCE = {torch.bfloat16: 5e-3, torch.float16: 1e-3}
SUMS = Config(Tile(t=4, m=4, num_warps=4, num_stages=1, n=128))
PRODUCT = Config(Tile(t=16, m=32, num_warps=4, num_stages=3, n=64), splits=1)


def make(rows: int, width: int, columns: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows of a wider tensor, whose other columns are poisoned; a weight; a bias."""
    generator = torch.Generator().manual_seed(rows * 7 + width + columns)
    wide = torch.full((rows, columns + 16), float("nan"), dtype=dtype)
    wide[:, :columns] = torch.randn(rows, columns, generator=generator).to(dtype)
    weight = (torch.randn(width, columns, generator=generator) * columns**-0.5).to(dtype)
    bias = torch.randn(width, generator=generator).to(dtype)
    return wide.to(DEVICE)[:, :columns], weight.to(DEVICE), bias.to(DEVICE)


def run(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, config: Config, *, gated: bool = False
) -> torch.Tensor:
    arrived = make_counters(len(weight), DEVICE, tile_rows=config.tile.m)
    out = multiply(x, weight, bias, arrived, config, gated=gated)
    assert not arrived.any(), "the counters are 0 again"
    return out


def assert_close(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    expected = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    assert out.dtype == x.dtype and out.shape == expected.shape
    assert float((out.double() - expected).norm() / expected.norm()) < TOLERANCE[x.dtype]


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allocates NaN, so that a number that nobody stores is found."""

    def empty(shape: tuple[int, ...] | int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.full((shape,) if isinstance(shape, int) else shape, float("nan"), dtype=dtype, device=device)

    monkeypatch.setattr(torch, "empty", empty)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("config", [SUMS, PRODUCT, replace(PRODUCT, splits=3)], ids=["sums", "product", "split"])
@pytest.mark.parametrize(
    ("rows", "width", "columns"), [(1, 64, 256), (2, 70, 320), (3, 40, 128), (3, 33, 33), (4, 1, 1), (4, 130, 200)]
)
def test_ragged_shapes(rows: int, width: int, columns: int, config: Config, dtype: torch.dtype) -> None:
    x, weight, bias = make(rows, width, columns, dtype)
    assert_close(run(x, weight, None, config), x, weight, None)
    assert_close(run(x, weight, bias, config), x, weight, bias)


@pytest.mark.parametrize("rows", [1, 5, 8, 16, 17, 33, 63, 64])
def test_all_rows_up_to_a_tile(rows: int) -> None:
    x, weight, bias = make(rows, 66, 200, torch.bfloat16)
    for splits in (1, 4, 16):
        config = Config(Tile(t=16 if rows <= 16 else 64, m=32, num_warps=4, num_stages=3, n=32), splits)
        assert_close(run(x, weight, bias, config), x, weight, bias)


@pytest.mark.parametrize("config", sorted(set(few_rows._TABLE.values()), key=repr), ids=repr)
def test_every_configuration(config: Config) -> None:
    x, weight, bias = make(config.tile.t, 70, 2048, torch.bfloat16)
    assert_close(run(x, weight, bias, config), x, weight, bias)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("config", [SUMS, PRODUCT, replace(PRODUCT, splits=3)], ids=["sums", "product", "split"])
@pytest.mark.parametrize("width", [2, 66, 132])
def test_gated_is_the_gate_of_the_product(width: int, config: Config, has_bias: bool) -> None:
    """To the bit what the product, as it is rounded, and the gate after it give, but for the exponential's last bit."""
    x, weight, bias = make(3, width, 200, torch.bfloat16)
    out = run(x, weight, bias if has_bias else None, config, gated=True)
    plain = run(x, weight, bias if has_bias else None, config)
    expected = reference.silu_multiply(plain.float()).to(x.dtype)
    assert out.shape == expected.shape
    torch.testing.assert_close(out, expected, rtol=2**-7, atol=0)
    assert (out == expected).double().mean() > 0.98


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("rows", "width", "columns"), [(1, 64, 128), (2, 66, 100), (3, 130, 128), (4, 2, 1)])
def test_normed_is_the_product_of_the_norm(rows: int, width: int, columns: int, gated: bool) -> None:
    (x, weight, bias), tile = make(rows, width, columns, torch.bfloat16), Tile(4, 4, 4, 1, 128)
    hidden, delta, norm = x.contiguous(), x.flip(0).contiguous() * 3, 1 + weight[0] / 4
    before = hidden.clone()
    total, out = multiply_normed(hidden, delta, norm, 1e-6, weight, bias, tile, gated=gated)
    assert torch.equal(total, before + delta) and torch.equal(hidden, before)
    normed = reference.rms_norm(total.float(), norm.float(), 1e-6).to(x.dtype)
    expected = run(normed, weight, bias, Config(tile), gated=gated)
    torch.testing.assert_close(out, expected, rtol=2**-6, atol=1e-2)
    assert (out == expected).double().mean() > 0.9


def test_rows_with_gaps_between_their_elements_are_refused() -> None:
    x, weight, _ = make(2, 64, 64, torch.bfloat16)
    with pytest.raises(AssertionError):
        run(x.t().contiguous().t(), weight, None, SUMS)
    with pytest.raises(AssertionError):
        run(x, weight.t(), None, SUMS)
    with pytest.raises(AssertionError):
        run(torch.cat([x, x, x]), weight, None, SUMS)


def test_shared_sums_are_the_same_each_time() -> None:
    x, weight, _ = make(16, 64, 1024, torch.bfloat16)
    config = replace(PRODUCT, splits=8)
    first = run(x, weight, None, config)
    assert all(torch.equal(run(x, weight, None, config), first) for _ in range(3))


# -- The choice --------------------------------------------------------------------------------------------------------

GPU = torch.device("cuda")


def test_the_table_serves_the_layers_of_a_small_model() -> None:
    for width, columns in ((4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)):
        for rows in range(1, 65):
            config = choose(rows, width, columns, torch.bfloat16, GPU)
            assert config is None or rows <= config.tile.t
        assert choose(1, width, columns, torch.float16, GPU) is not None


@pytest.mark.parametrize(
    ("width", "columns", "name"),
    [
        (1024, 3072, "narrow"),
        (4096, 1024, "small"),
        (4096, 4096, "deep"),
        (6144, 4096, "large"),
        (151_936, 1024, "head"),
    ],
)
def test_classes(width: int, columns: int, name: str) -> None:
    assert classify(width, columns) == name


def test_cublas_serves_the_rest() -> None:
    assert choose(65, 4096, 1024, torch.bfloat16, GPU) is None
    assert choose(0, 4096, 1024, torch.bfloat16, GPU) is None
    assert choose(1, 4096, 1024, torch.float32, GPU) is None
    assert choose(1, 4096, 1024, torch.bfloat16, torch.device("cpu")) is None
    assert choose(1, 151_936, 1024, torch.bfloat16, GPU) is None, "the head"


def test_norms_are_computed_with_short_rows() -> None:
    tile = few_rows._NORMED[2, 1024]
    assert choose_normed(2, 4096, 1024, torch.bfloat16, GPU) == Config(tile)
    for rows, width, columns in ((3, 4096, 1024), (1, 4096, 4096), (1, 151_936, 1024), (1, 1024, 2048)):
        assert choose_normed(rows, width, columns, torch.bfloat16, GPU) is None
    for (rows, columns), tile in few_rows._NORMED.items():
        assert rows <= tile.t and columns <= tile.n


def test_every_row_count_of_the_table_has_tiles_for_it() -> None:
    for (rows, _), config in few_rows._TABLE.items():
        assert rows in few_rows._ROWS
        assert config is None or (rows <= config.tile.t and (config.splits is None or config.splits >= 1))


def test_the_products_of_a_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = make(3, 96, 128, torch.bfloat16)
    products = FewRows(weight)
    monkeypatch.setattr(few_rows, "choose", lambda *_: replace(PRODUCT, splits=2))
    product, gated = products.multiply(x, bias), products.multiply_gated(x, bias)
    assert product is not None and gated is not None
    assert_close(product, x, weight, bias)
    torch.testing.assert_close(gated, reference.silu_multiply(product.float()).to(x.dtype), rtol=2**-7, atol=0)
    assert products.multiply(x.t().contiguous().t(), bias) is None, "torch serves such rows"
    monkeypatch.setattr(few_rows, "choose", lambda *_: None)
    assert products.multiply(x, bias) is None and products.multiply_gated(x, bias) is None


def test_only_torch_multiplies_elsewhere() -> None:
    meta = torch.empty(8, 16, dtype=torch.bfloat16, device="meta")
    assert select_few_rows(meta) is None
    assert select_few_rows(torch.zeros(8, 16, device=DEVICE)) is None, "float32"
    assert select_few_rows(torch.zeros(16, 8, dtype=torch.bfloat16, device=DEVICE).t()) is None, "not contiguous"
