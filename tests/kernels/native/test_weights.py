"""Tiles hold the numbers of their sources exactly, and multiply as exact arithmetic does."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from bough.kernels.linear.formats import (
    quantise_int8_groups,
)
from bough.kernels.native.library import Library
from bough.kernels.native.packed import tile_packed
from bough.kernels.native.threads import Threads
from bough.kernels.native.weights import TiledWeight, mix, tile_blocks

# Bytes of a block, its numbers, and where its factors of float16 are.
BLOCKS = {
    "Q4_0": (18, 32, (0,)),
    "Q4_1": (20, 32, (0, 2)),
    "Q5_0": (22, 32, (0,)),
    "Q5_1": (24, 32, (0, 2)),
    "Q8_0": (34, 32, (0,)),
    "Q4_K": (144, 256, (0, 2)),
    "Q5_K": (176, 256, (0, 2)),
    "Q6_K": (210, 256, (208,)),
}


@pytest.fixture(scope="module")
def library(native_library: Library) -> Library:
    return native_library


@pytest.fixture(scope="module")
def threads(library: Library) -> Threads:
    return Threads(library, 2)


def random_blocks(kind: str, rows: int, columns: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Blocks of all bit patterns, but for factors, which are numbers of a usual size."""
    size, numbers, factors = BLOCKS[kind]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows, columns // numbers, size), np.uint8)
    for at in factors:
        blocks[..., at : at + 2] = rng.normal(0, 0.01, (*blocks.shape[:2], 1)).astype(np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def read(library: Library, weight: TiledWeight) -> npt.NDArray[np.float32]:
    rows = np.arange(weight.shape[0], dtype=np.int64)
    numbers = np.empty(weight.shape, np.float32)
    library.read_rows(ctypes.addressof(weight.struct), rows.ctypes.data, len(rows), numbers.ctypes.data)
    return numbers


def multiply(
    library: Library, threads: Threads, weight: TiledWeight, x: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    y = np.empty((len(x), weight.shape[0]), np.float32)
    library.multiply(threads.address, ctypes.addressof(weight.struct), x.ctypes.data, len(x), y.ctypes.data)
    return y


def whole_numbers(rows: int, columns: int, seed: int = 0) -> npt.NDArray[np.float32]:
    """Activations that rounding to 8 bits leaves as they are."""
    x = np.random.default_rng(seed).integers(-127, 128, (rows, columns)).astype(np.float32)
    x[:, ::32] = 127
    return x


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("rows", [1, 16, 40])
def test_blocks_keep_their_numbers(kind: str, rows: int, library: Library, threads: Threads) -> None:
    blocks = random_blocks(kind, rows, 512)
    order = np.random.default_rng(1).permutation(rows)
    weight = tile_blocks(library, threads, blocks, GGMLQuantizationType[kind].value, 512, order=order)
    assert weight is not None
    expected = dequantize(blocks, GGMLQuantizationType[kind])[order]
    np.testing.assert_allclose(read(library, weight), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", BLOCKS)
def test_products_are_exact_but_for_float32_sums(kind: str, library: Library, threads: Threads) -> None:
    blocks = random_blocks(kind, 72, 768)
    bias = np.random.default_rng(0).normal(size=72).astype(np.float32)
    weight = tile_blocks(library, threads, blocks, GGMLQuantizationType[kind].value, 768, bias=bias)
    assert weight is not None
    numbers = dequantize(blocks, GGMLQuantizationType[kind]).astype(np.float64)
    x = whole_numbers(33, 768)
    expected = x.astype(np.float64) @ numbers.T + bias
    bound = np.abs(x).astype(np.float64) @ np.abs(numbers).T
    assert np.all(np.abs(multiply(library, threads, weight, x) - expected) <= 4e-6 * bound + 1e-6)


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_factor_that_is_not_finite_is_told(value: float, kind: str, library: Library, threads: Threads) -> None:
    """And it is in the products of its output, and in no other."""
    size, _, factors = BLOCKS[kind]
    for at in factors:
        blocks = random_blocks(kind, 40, 512)
        blocks[19].reshape(-1, size)[1, at : at + 2] = np.array([value], np.float16).view(np.uint8)
        weight = tile_blocks(library, threads, blocks, GGMLQuantizationType[kind].value, 512)
        assert weight is not None and not weight.finite
        x = np.random.default_rng(0).normal(size=(60, 512)).astype(np.float32)
        for rows in (x, x[:1].copy()):
            faulty = ~np.isfinite(multiply(library, threads, weight, rows))
            assert faulty[:, 19].all() and faulty.sum() == len(rows)
        assert not mix(library, threads, weight).finite
        lost = ~np.isfinite(mixed(library, threads, weight))
        assert np.flatnonzero(lost.any(axis=1)).tolist() == [19]


@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K", "Q8_0"])
def test_a_row_is_the_same_in_any_company(kind: str, library: Library, threads: Threads) -> None:
    weight = tile_blocks(library, threads, random_blocks(kind, 56, 256), GGMLQuantizationType[kind].value, 256)
    assert weight is not None
    x = np.random.default_rng(2).normal(size=(61, 256)).astype(np.float32)
    together = multiply(library, threads, weight, x)
    for start, stop in [(0, 1), (1, 3), (3, 10), (7, 33), (30, 61)]:
        np.testing.assert_array_equal(multiply(library, threads, weight, x[start:stop].copy()), together[start:stop])


def test_activations_are_rounded_in_groups_of_32(library: Library, threads: Threads) -> None:
    columns = 96
    weight = tile_packed(library, threads, quantise_int8_groups(torch.eye(columns), 32))
    assert weight is not None
    x = np.random.default_rng(3).normal(size=(5, columns)).astype(np.float32)
    scales = np.abs(x.reshape(5, -1, 32)).max(-1, keepdims=True) / 127
    expected = (np.rint(x.reshape(5, -1, 32) / scales) * scales).reshape(5, -1)
    assert np.abs(multiply(library, threads, weight, x) - expected).max() < 1e-3 * np.abs(x).max()


def test_nothing_comes_of_nothing(library: Library, threads: Threads) -> None:
    weight = tile_blocks(library, threads, random_blocks("Q4_1", 16, 64), GGMLQuantizationType.Q4_1.value, 64)
    assert weight is not None
    assert not multiply(library, threads, weight, np.zeros((3, 64), np.float32)).any()


def mixed(library: Library, threads: Threads, weight: TiledWeight | npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The numbers of the Hadamard form: what it makes of rows that rounding leaves as they are."""
    return multiply(library, threads, mix(library, threads, weight), np.eye(weight.shape[1], dtype=np.float32)).T


@pytest.mark.parametrize("shape", [(40, 576), (17, 64), (128, 1024)])
def test_the_hadamard_form_keeps_numbers_to_8_bits_a_row(
    shape: tuple[int, int], library: Library, threads: Threads
) -> None:
    weight = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    weight[:, 5] *= 50
    weight[0] += 3  # this and that are spread
    lost = mixed(library, threads, weight) - weight
    assert 0 < np.linalg.norm(lost) < 0.012 * np.linalg.norm(weight)


@pytest.mark.parametrize("kind", BLOCKS)
def test_the_hadamard_form_of_blocks_is_that_of_their_numbers(kind: str, library: Library, threads: Threads) -> None:
    blocks = random_blocks(kind, 40, 512)
    weight = tile_blocks(library, threads, blocks, GGMLQuantizationType[kind].value, 512)
    assert weight is not None
    numbers = read(library, weight)
    np.testing.assert_allclose(
        mixed(library, threads, weight), mixed(library, threads, numbers), atol=1e-2 * np.abs(numbers).max()
    )
    assert np.linalg.norm(mixed(library, threads, weight) - numbers) < 0.012 * np.linalg.norm(numbers)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 7, 8, 12, 16, 23, 61])
def test_products_of_the_hadamard_form(num_rows: int, library: Library, threads: Threads) -> None:
    """Against float64; outliers among activations lose no more than the others."""
    rng = np.random.default_rng(4)
    weight, bias = rng.normal(size=(72, 768)).astype(np.float32), rng.normal(size=72).astype(np.float32)
    x = rng.normal(size=(num_rows, 768)).astype(np.float32)
    x[:, ::97] *= 30
    found = multiply(library, threads, mix(library, threads, weight, bias=bias), x)
    expected = x.astype(np.float64) @ mixed(library, threads, weight).T.astype(np.float64) + bias
    assert np.linalg.norm(found - expected) < 0.012 * np.linalg.norm(expected)


def test_a_row_of_the_hadamard_form_is_the_same_in_any_company(library: Library, threads: Threads) -> None:
    rng = np.random.default_rng(2)
    weight = mix(library, threads, rng.normal(size=(56, 256)).astype(np.float32))
    x = rng.normal(size=(61, 256)).astype(np.float32)
    together = multiply(library, threads, weight, x)
    for start, stop in [(0, 1), (1, 3), (3, 10), (7, 33), (30, 61)]:
        np.testing.assert_array_equal(multiply(library, threads, weight, x[start:stop].copy()), together[start:stop])
    assert not multiply(library, threads, weight, np.zeros((3, 256), np.float32)).any()


def test_blocks_without_a_format_are_left_to_others(library: Library, threads: Threads) -> None:
    assert tile_blocks(library, threads, np.zeros((16, 84), np.uint8), GGMLQuantizationType.Q2_K.value, 256) is None


def outlying(rows: int, columns: int, seed: int = 0) -> npt.NDArray[np.float32]:
    """Activations of which one group of 32 a row, and another one in every third, is far above the others."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns // 32, 32)).astype(np.float32)
    x[np.arange(rows), rng.integers(0, columns // 32, rows)] *= 60
    x[::3, 1] *= 90
    return x.reshape(rows, columns)


def rounded(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """The numbers that `x` becomes: 16 bits in groups whose scales, squared, are above 5 times their row's mean."""
    groups = x.reshape(len(x), -1, 32)
    scales = np.abs(groups).max(-1, keepdims=True) / np.float32(127)
    exact = groups * (np.float32(1) / scales)
    codes = np.rint(exact).astype(np.float64)
    rests = np.rint((exact - codes) * 254) / 254
    far = scales**2 > 5 * (scales**2).mean(1, keepdims=True)
    assert 0 < far.sum() < far.size / 4
    return ((codes + np.where(far, rests, 0)) * scales).reshape(x.shape)


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 12, 33, 61, 150])
def test_groups_far_above_the_others_have_16_bits(kind: str, rows: int, library: Library, threads: Threads) -> None:
    """In all formats, unpacked (from 49 rows on) or not, with a panel that is not full, and with a bias."""
    blocks = random_blocks(kind, 72, 768)
    bias = np.random.default_rng(0).normal(size=72).astype(np.float32)
    weight = tile_blocks(library, threads, blocks, GGMLQuantizationType[kind].value, 768, bias=bias)
    assert weight is not None
    numbers = dequantize(blocks, GGMLQuantizationType[kind]).astype(np.float64)
    x = outlying(rows, 768)
    found = multiply(library, threads, weight, x) - bias
    taken = rounded(x)
    bound = np.abs(taken) @ np.abs(numbers).T
    assert np.all(np.abs(found - taken @ numbers.T) <= 4e-6 * bound + 1e-6)
    lost = np.abs(found - x.astype(np.float64) @ numbers.T)
    outliers = np.abs(x).max(1, keepdims=True) / 254 * np.linalg.norm(numbers, axis=1)  # of 8 bits: to half a code
    assert lost.mean() < 0.05 * outliers.mean()


@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K", "Q8_0"])
def test_a_row_with_outliers_is_the_same_in_any_company(kind: str, library: Library, threads: Threads) -> None:
    weight = tile_blocks(library, threads, random_blocks(kind, 56, 768), GGMLQuantizationType[kind].value, 768)
    assert weight is not None
    x = outlying(161, 768, seed=1)
    together = multiply(library, threads, weight, x)
    for start, stop in [(0, 1), (1, 3), (3, 10), (7, 33), (30, 61), (100, 161)]:
        np.testing.assert_array_equal(multiply(library, threads, weight, x[start:stop].copy()), together[start:stop])
