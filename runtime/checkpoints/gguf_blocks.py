"""Conversion of a GGUF tensor's blocks to packed integers with scales: the same numbers, to the bit, reordered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ...kernels.linear.formats import PackedWeight, pack
from .gguf_file import BlockFormat

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.floating]


class _Blocks(NamedTuple):
    """B blocks of n numbers with g scales each: scale * code, plus a minimum where there is one."""

    codes: npt.NDArray[np.integer]  # [B, n]
    scales: Floats  # [B, g]
    minimums: Floats | None  # [B, g]
    bits: int


def _half(columns: Bytes) -> npt.NDArray[np.float16]:
    return np.ascontiguousarray(columns).view(np.float16)


def _nibbles(columns: Bytes) -> Bytes:
    """[B, n] bytes -> [B, 2 n]: the lower halves of all bytes, then the upper ones."""
    return np.concatenate([columns & 15, columns >> 4], axis=1)


def _fifth_bits(columns: Bytes) -> Bytes:
    """Expands 32 bits to 16 or 0 each."""
    return np.unpackbits(columns, axis=1, bitorder="little") * np.uint8(16)


def _q4_0(blocks: Bytes) -> _Blocks:
    return _Blocks(_nibbles(blocks[:, 2:]), _half(blocks[:, :2]), None, 4)


def _q4_1(blocks: Bytes) -> _Blocks:
    return _Blocks(_nibbles(blocks[:, 4:]), _half(blocks[:, :2]), _half(blocks[:, 2:4]), 4)


def _q5_0(blocks: Bytes) -> _Blocks:
    codes = (_nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])).astype(np.int8) - np.int8(16)
    return _Blocks(codes, _half(blocks[:, :2]), None, 8)


def _q5_1(blocks: Bytes) -> _Blocks:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return _Blocks(codes.astype(np.int8), _half(blocks[:, :2]), _half(blocks[:, 2:4]), 8)


def _q8_0(blocks: Bytes) -> _Blocks:
    return _Blocks(np.ascontiguousarray(blocks[:, 2:]).view(np.int8), _half(blocks[:, :2]), None, 8)


def _six_bit_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """Returns the eight scales and minimums of blocks of Q4_K or Q5_K, float32 [B, 8], rounded as in the format."""
    scale, minimum = _half(blocks[:, :2]).astype(np.float32), _half(blocks[:, 2:4]).astype(np.float32)
    first, second, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 63, (rest & 15) | (first >> 6) << 4], axis=1)
    minimums = np.concatenate([second & 63, (rest >> 4) | (second >> 6) << 4], axis=1)
    return scale * scales.astype(np.float32), -(minimum * minimums.astype(np.float32))


def _q4_k(blocks: Bytes) -> _Blocks:
    codes = _nibbles(blocks[:, 16:].reshape(-1, 32)).reshape(len(blocks), 256)
    return _Blocks(codes, *_six_bit_scales(blocks), 4)


def _q5_k(blocks: Bytes) -> _Blocks:
    codes = _nibbles(blocks[:, 48:].reshape(-1, 32)).reshape(len(blocks), 8, 32)
    high = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return _Blocks((codes | high << 4).reshape(len(blocks), 256).astype(np.int8), *_six_bit_scales(blocks), 8)


def _q6_k(blocks: Bytes) -> _Blocks:
    low = _nibbles(blocks[:, :128].reshape(-1, 64)).reshape(len(blocks), 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    codes = (low | high << 4).reshape(len(blocks), 256).astype(np.int8) - np.int8(32)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    return _Blocks(codes, _half(blocks[:, 208:]).astype(np.float32) * scales, None, 8)


_READERS: Mapping[str, Callable[[Bytes], _Blocks]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0,
    "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
}  # fmt: skip

BLOCK_FORMATS = frozenset(_READERS)
"""Tensor types that are packed integers."""


def repack(
    rows: Bytes, block_format: BlockFormat, order: torch.Tensor | None = None, device: torch.device | str = "cpu"
) -> PackedWeight:
    """Converts a matrix's bytes [M, bytes a row], in one of BLOCK_FORMATS, to a weight with exactly the same numbers.

    order     int64 [M]: source row of each row of the result
    device    device of the result, on which it is packed
    """
    num_rows = len(rows)
    blocks = _READERS[block_format.name](rows.reshape(-1, block_format.num_bytes))

    def by_row(values: npt.NDArray[np.generic]) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(values)).reshape(num_rows, -1)
        return (tensor if order is None else tensor[order]).to(device)

    group = block_format.size // blocks.scales.shape[1]
    return PackedWeight(
        words=pack(by_row(blocks.codes), blocks.bits, group),
        scales=by_row(blocks.scales).t().contiguous(),
        zeros=None if blocks.minimums is None else by_row(blocks.minimums).t().contiguous(),
        bits=blocks.bits,
        group=group,
        num_columns=blocks.codes.size // num_rows,
    )
