"""Forward passes by the CPU library: one call a pass, all layers in it."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ...kernels.native import library as native
from ...kernels.native.weights import aligned
from ..models.native import NativeDecoder
from ..sampler.rows import Logits
from .runner import Batch

logger = logging.getLogger("bough.engine")

_AHEAD = 256 << 20
"""Most bytes of the cache that are allocated from the system before they are needed."""

_FIRST_SLOTS = 2048
"""Tokens of the cache that are allocated before any is needed."""

_PIECE = 2 << 20
"""Bytes allocated at a time: about 0.3 ms, or 5 ms on a virtual machine, whose host must provide them too."""

_SYSTEM_PAGE = 4096


class NativeRunner:
    """`LogitsRunner` over one KV cache of integers of `kv_bits` bits, 8 or 16, with a scale for each token and head.

    A token's logits do not depend, to the bit, on cache, batch, chunks or threads: see source/linear.h and
    source/attention.h.
    """

    def __init__(self, decoder: NativeDecoder, num_pages: int, page_size: int, kv_bits: int = 16) -> None:
        self._decoder = decoder
        num_slots = num_pages * page_size
        num_bytes, scale_bytes = decoder.kv_bytes(num_slots, kv_bits)
        self._memory = aligned(num_bytes), aligned(num_bytes), aligned(scale_bytes)
        self._cache = native.Cache(*(memory.ctypes.data for memory in self._memory), num_slots, page_size, kv_bits)
        self._num_slots, self._num_layers = num_slots, decoder.num_layers
        self._used = self._touched = 0  # slots of each layer: written to, and certainly backed by memory
        self._untouched: Iterator[npt.NDArray[np.uint8]] = iter(())
        self._workspace = aligned(0)
        self._logits: Logits = np.empty((0, decoder.config.vocab_size), np.float32)
        self.faults: npt.NDArray[np.int32] | None = None
        """Layer, plus 1, in which each token of the last run first had numbers that are not finite, or 0: int32 [T];
        None if all were finite. The logits of such a token, and of all that attend to it, are NaN.
        """

    def run(self, batch: Batch) -> Logits | None:
        """Returns the batch's logits, float32 [R, vocab_size], valid until the next run; None if it needs none."""
        library, decoder, attention = self._decoder.library, self._decoder, batch.attention
        arrays: list[npt.NDArray[Any]] = [
            *(np.ascontiguousarray(a, np.int64) for a in (batch.tokens, batch.positions)),
            *(np.ascontiguousarray(a, np.int64) for a in (attention.write_slot, batch.logit_rows)),
            *(np.ascontiguousarray(a, np.int32) for a in (attention.query_start, attention.context_len)),
            np.ascontiguousarray(attention.page_table, np.int32),
        ]
        num_tokens, num_logits = len(batch.tokens), len(batch.logit_rows)
        self._used = max(self._used, int(attention.write_slot.max(initial=-1)) + 1)
        table = attention.page_table
        sizes = (num_tokens, len(attention.context_len), num_logits, table.shape[1])
        faults = np.zeros(num_tokens, np.int32)
        struct = native.Batch(*sizes, *(array.ctypes.data for array in arrays), None, faults.ctypes.data)
        model = ctypes.addressof(decoder.struct)
        needed = library.workspace_bytes(model, decoder.threads.num, num_tokens, num_logits)
        if needed > len(self._workspace):
            self._workspace = aligned(0)  # not both at once
            self._workspace = aligned(needed)
        if num_logits > len(self._logits):
            self._logits = np.empty((0, decoder.config.vocab_size), np.float32)
            self._logits = np.empty((num_logits, decoder.config.vocab_size), np.float32)
        library.forward(
            decoder.threads.address,
            model,
            ctypes.addressof(self._cache),
            ctypes.addressof(struct),
            self._workspace.ctypes.data,
            self._logits.ctypes.data,
        )
        self.faults = faults if faults.any() else None
        if self.faults is not None:
            first = int(np.where(faults, faults, faults.max() + 1).argmin())
            where = "after the last layer" if faults[first] > decoder.num_layers else f"in layer {faults[first] - 1}"
            logger.warning(
                "numbers of %d of %d tokens are not finite: of token %d at position %d first, %s",
                *(np.count_nonzero(faults), num_tokens, batch.tokens[first], batch.positions[first], where),
            )
        return self._logits[:num_logits] if num_logits else None

    def prepare(self) -> bool:
        """Allocates a piece of the cache from the system for later passes: in all as much as has been used so far, up
        to about 256 MiB. Returns False if that much is allocated.
        """
        piece = next(self._untouched, None)
        if piece is None:
            slot_bytes = sum(len(memory) for memory in self._memory) // self._num_slots
            ahead = min(max(self._used, _FIRST_SLOTS), _AHEAD // slot_bytes)
            wanted = min(self._num_slots, self._used + ahead)
            start = max(self._used, self._touched)
            if wanted <= start:
                return False
            self._touched = wanted
            self._untouched = self._pieces(start, wanted)
            piece = next(self._untouched)
        piece[::_SYSTEM_PAGE] |= 0  # written, since a page that is only read remains the shared zero page
        return True

    def _pieces(self, start: int, stop: int) -> Iterator[npt.NDArray[np.uint8]]:
        """Yields the slots start .. stop of all layers."""
        for memory in self._memory:
            for layer in memory.reshape(self._num_layers, -1):
                size = len(layer) // self._num_slots
                for at in range(start * size, stop * size, _PIECE):
                    yield layer[at : min(at + _PIECE, stop * size)]
