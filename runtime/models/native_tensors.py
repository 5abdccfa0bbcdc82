"""Weights for the CPU library that torch has to read, unpack or round."""

from __future__ import annotations

import torch

from ...kernels.linear.formats import PackedWeight, quantise_int4_minimums, quantise_int8_groups
from ...kernels.native.packed import tile_packed as tile_packed
from ...kernels.native.weights import GROUP
from ..checkpoints.gguf_tensors import GGUFTensors
from ..checkpoints.quantised import QuantisedFolder
from ..checkpoints.safetensors import Checkpoint


def read_packed(
    checkpoint: Checkpoint | GGUFTensors, name: str, kind: str | None, is_table: bool
) -> PackedWeight | None:
    """A matrix as packed integers; None if it is of floats that are not to be rounded, or packed in another way.

    kind        "int8" or "int4", which it is rounded to; None: it stays as it is
    is_table    of vectors for tokens: those get 8 bits
    """
    if kind is None and isinstance(checkpoint, QuantisedFolder) and checkpoint.is_quantised(name):
        stored = checkpoint.read_stored(name)
        return stored.weight if isinstance(stored.weight, PackedWeight) and stored.order is None else None
    if kind is None and not is_table:
        return None
    if isinstance(checkpoint, GGUFTensors):
        weight = torch.from_numpy(checkpoint.read_numbers(name))
    else:
        weight = checkpoint.read(name)
    return quantise_int4_minimums(weight, GROUP) if kind == "int4" else quantise_int8_groups(weight, GROUP)
