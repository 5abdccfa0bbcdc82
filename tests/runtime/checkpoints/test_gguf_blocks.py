"""Blocks of GGUF files as packed integers: the same numbers."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from bough.kernels.linear.formats import dequantise
from bough.runtime.checkpoints.gguf_blocks import BLOCK_FORMATS, repack
from bough.runtime.checkpoints.gguf_file import FORMATS

SCALES_AT = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def random_blocks(format_name: str, rows: int, columns: int, *, seed: int = 0) -> np.ndarray:
    """Any bytes are codes; only the halves that scale them have to be numbers of a sane size."""
    kind = next(entry for entry in FORMATS.values() if entry.name == format_name)
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (rows * columns // kind.size, kind.num_bytes), np.uint8)
    for at in SCALES_AT.get(format_name, (0,)):
        blocks[:, at : at + 2] = random.normal(size=(len(blocks), 1), scale=0.01).astype("<f2").view(np.uint8)
    return blocks.reshape(rows, -1)


@pytest.mark.parametrize("format_name", sorted(BLOCK_FORMATS))
def test_repacked_blocks_are_the_same_numbers(format_name: str) -> None:
    kind = next(entry for entry in FORMATS.values() if entry.name == format_name)
    rows = random_blocks(format_name, 6, 512)
    expected = torch.from_numpy(gguf.dequantize(rows, gguf.GGMLQuantizationType(kind.type_id)))
    assert torch.equal(dequantise(repack(rows, kind)), expected)
    order = torch.tensor([3, 0, 5, 1, 2, 4])
    weight = repack(rows, kind, order)
    assert torch.equal(dequantise(weight), expected[order]), "rows in another order"
    assert weight.bits == (4 if format_name.startswith("Q4") else 8)


def test_every_block_format_that_can_be_read_can_be_kept() -> None:
    assert {entry.name for entry in FORMATS.values() if entry.size > 1} == BLOCK_FORMATS
