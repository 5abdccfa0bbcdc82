"""Weights in the CPU library's tiles, from packed integers of any origin."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from ..linear.formats import PackedWeight, unpack
from . import library as native
from .library import Library
from .threads import Threads
from .weights import GROUP, TiledWeight, aligned, tiled


def tile_packed(
    library: Library, threads: Threads, weight: PackedWeight, bias: npt.NDArray[np.float32] | None = None
) -> TiledWeight | None:
    """Packed integers' numbers exactly (up to float32); None if a scale is for fewer columns than a tile has."""
    rows, columns = weight.shape
    group = columns if weight.group is None else weight.group
    if columns % GROUP or group % GROUP:
        return None
    scales = weight.scales.float()
    minimums = None
    if weight.zeros is not None:
        codes_are_shifted = not weight.zeros.dtype.is_floating_point
        minimums = -(scales * weight.zeros.float()) if codes_are_shifted else weight.zeros.float()
    form = native.BITS8 if weight.bits == 8 else 0
    form |= 0 if minimums is None else native.MINIMUM
    if not all(tensor is None or torch.equal(tensor.half().float(), tensor) for tensor in (scales, minimums)):
        form |= native.WIDE
    codes = unpack(weight)
    held = (codes.to(torch.int16) + 128).to(torch.uint8) if weight.bits == 8 else codes
    arrays = [held.contiguous(), *(None if t is None else _spread(t, group, columns) for t in (scales, minimums))]
    addresses = [None if t is None else t.data_ptr() for t in arrays]
    tiles = aligned(library.weight_bytes(form, rows, columns))
    finite = library.pack_codes(threads.address, form, *addresses, rows, columns, tiles.ctypes.data)
    return tiled(form, rows, columns, tiles, bias, finite=bool(finite))


def _spread(scales: torch.Tensor, group: int, columns: int) -> torch.Tensor:
    """[groups, M] -> [M, tiles]."""
    return scales.t().repeat_interleave(group // GROUP, dim=1)[:, : columns // GROUP].contiguous()
