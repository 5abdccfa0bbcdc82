"""Weights in the CPU library's tiles, from GGUF's blocks, without torch."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from . import library as native
from .library import ALIGNMENT, Library
from .threads import Threads

GROUP = 32
"""Inputs that share a scale in a tile."""

BLOCK = 64
"""Inputs that are mixed with each other in the Hadamard form."""


@dataclass(frozen=True)
class TiledWeight:
    """A weight [M, N] for the library. Keep it while `struct`, or a copy of it, is in use.

    finite    none of its numbers, bias aside, is infinite or NaN
    """

    struct: native.Weight
    tiles: npt.NDArray[np.uint8]
    bias: npt.NDArray[np.float32] | None
    finite: bool

    @property
    def shape(self) -> tuple[int, int]:
        """(M, N)."""
        return self.struct.rows, self.struct.columns


def aligned(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Memory that begins at a multiple of ALIGNMENT; zeros that cost nothing until they are used."""
    memory = np.zeros(num_bytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + num_bytes]


def tile_blocks(
    library: Library,
    threads: Threads,
    blocks: npt.NDArray[np.uint8],
    type_id: int,
    columns: int,
    *,
    order: npt.NDArray[np.int64] | None = None,
    bias: npt.NDArray[np.float32] | None = None,
) -> TiledWeight | None:
    """A GGUF tensor's numbers exactly; None if no format of the library holds its type.

    blocks    [M, bytes a row], contiguous
    order     int64 [M]: the row that each row of the result is
    """
    form = library.format_of(type_id)
    if form < 0 or columns % GROUP:
        return None
    rows = np.ascontiguousarray(blocks)
    tiles = aligned(library.weight_bytes(form, len(rows), columns))
    order = None if order is None else np.ascontiguousarray(order, np.int64)
    by = None if order is None else order.ctypes.data
    finite = library.pack_blocks(threads.address, type_id, rows.ctypes.data, by, len(rows), columns, tiles.ctypes.data)
    return tiled(form, len(rows), columns, tiles, bias, finite=bool(finite))


def mix(
    library: Library,
    threads: Threads,
    weight: TiledWeight | npt.NDArray[np.float32],
    *,
    bias: npt.NDArray[np.float32] | None = None,
) -> TiledWeight:
    """A weight [M, N], in tiles or as numbers, in 8 bits of the Hadamard form; N is a multiple of BLOCK.

    The product of a row with it differs from the exact one by a random 1 % of the row's and the weight's sizes
    (QuaRot, arXiv 2404.00456; source/linear/hadamard.h).

    Raises:
        MemoryError: there is none left.
    """
    rows, columns = weight.shape
    form = native.BITS8 | native.HADAMARD
    tiles = aligned(library.weight_bytes(form, rows, columns))
    if isinstance(weight, TiledWeight):
        source, numbers = ctypes.addressof(weight.struct), None
    else:
        weight = np.ascontiguousarray(weight, np.float32)
        source, numbers = None, weight.ctypes.data
    outcome = library.mix(threads.address, source, numbers, rows, columns, tiles.ctypes.data)
    if not outcome:
        raise MemoryError(f"no memory for a weight of {rows} x {columns}")
    return tiled(form, rows, columns, tiles, bias, finite=outcome > 0)


def tiled(
    form: int,
    rows: int,
    columns: int,
    tiles: npt.NDArray[np.uint8],
    bias: npt.NDArray[np.float32] | None,
    *,
    finite: bool,
) -> TiledWeight:
    """Describes `tiles` of the format `form`."""
    numbers = None if bias is None else np.ascontiguousarray(bias, np.float32)
    address = None if numbers is None else numbers.ctypes.data
    return TiledWeight(native.Weight(form, rows, columns, 0, tiles.ctypes.data, address), tiles, numbers, finite)
