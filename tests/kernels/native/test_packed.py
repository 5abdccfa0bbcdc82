"""Tiles of packed integers hold their numbers exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bough.kernels.linear.formats import (
    PackedWeight,
    dequantise,
    pack,
    quantise_int4,
    quantise_int4_minimums,
    quantise_int8_groups,
)
from bough.kernels.native.library import Library
from bough.kernels.native.packed import tile_packed
from bough.kernels.native.threads import Threads

from .test_weights import multiply, read, whole_numbers


@pytest.fixture(scope="module")
def library(native_library: Library) -> Library:
    return native_library


@pytest.fixture(scope="module")
def threads(library: Library) -> Threads:
    return Threads(library, 2)


def packed_weights() -> list[PackedWeight]:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(40, 256, generator=generator)
    codes = torch.randint(-128, 128, (40, 256), generator=generator, dtype=torch.int16).to(torch.int8)
    minimums = torch.randn(4, 40, generator=generator)
    scales = torch.rand(4, 40, generator=generator)
    return [
        quantise_int4(weight.half(), 32),
        quantise_int4(weight.half(), 128),
        quantise_int4(weight.bfloat16(), 64),
        quantise_int4(weight, 32, symmetric=True),
        quantise_int4_minimums(weight, 32),
        quantise_int8_groups(weight, 32),
        PackedWeight(pack(codes, 8, 64), scales, minimums, 8, 64, 256),
        PackedWeight(pack(codes, 8, None), scales[:1].half(), None, 8, None, 256),
    ]


@pytest.mark.parametrize("index", range(8))
def test_packed_integers_keep_their_numbers(index: int, library: Library, threads: Threads) -> None:
    packed = packed_weights()[index]
    weight = tile_packed(library, threads, packed)
    assert weight is not None
    np.testing.assert_allclose(read(library, weight), dequantise(packed).numpy(), rtol=1e-5, atol=1e-6)
    x = whole_numbers(7, 256)
    expected = x.astype(np.float64) @ dequantise(packed).double().numpy().T
    assert np.abs(multiply(library, threads, weight, x) - expected).max() <= 1e-5 * np.abs(expected).max()


def test_integers_in_other_groups_are_left_to_others(library: Library, threads: Threads) -> None:
    codes = torch.zeros(16, 64, dtype=torch.int8)
    packed = PackedWeight(pack(codes, 8, 16), torch.ones(4, 16), None, 8, 16, 64)
    assert tile_packed(library, threads, packed) is None
