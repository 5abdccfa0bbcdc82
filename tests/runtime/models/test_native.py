"""Checkpoints that quantisers wrote, in the CPU library's tiles: the file's numbers, or torch's decoder instead."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch

from bough.kernels.native import library as native
from bough.kernels.native.library import Library
from bough.kernels.native.threads import Threads
from bough.runtime.models.decoder import Decoder
from bough.runtime.models.load import LoadedModel, load_model
from bough.runtime.models.native import NativeDecoder, NativeTarget

from ...support.tiny_model import write_tiny_model
from .quantised_folders import quantise_folder
from .test_quantised_checkpoint import FORMATS

EXACT = ("awq", "awq-g128", "gptq", "gptq-v2", "gptq-symmetric", "gptq-rows", "gptq-8", "gptq-8-symmetric")
MATRICES = {"query": "self_attn.q_proj", "out": "self_attn.o_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}


def load(folder: Path, library: Library, kind: str | None = None) -> LoadedModel:
    return load_model(folder, dtype="float32", native=NativeTarget(library, Threads(library, 2), kind))


def write_wide(folder: Path) -> Path:
    return write_tiny_model(folder, hidden_size=128, intermediate_size=256, head_dim=32)


def numbers(decoder: NativeDecoder, weight: native.Weight) -> torch.Tensor:
    rows, read = np.arange(weight.rows, dtype=np.int64), np.empty((weight.rows, weight.columns), np.float32)
    decoder.library.read_rows(ctypes.addressof(weight), rows.ctypes.data, len(rows), read.ctypes.data)
    return torch.from_numpy(read)


@pytest.mark.parametrize("name", EXACT)
def test_the_tiles_hold_the_files_numbers(name: str, tmp_path: Path, native_library: Library) -> None:
    dense = quantise_folder(write_wide(tmp_path), *FORMATS[name])
    loaded = load(tmp_path, native_library)
    decoder = loaded.model
    assert isinstance(decoder, NativeDecoder)
    layers = (native.Layer * 2).from_address(decoder.struct.layers)
    for part, source in MATRICES.items():
        expected = dense[f"model.layers.1.{source}.weight"]
        torch.testing.assert_close(numbers(decoder, getattr(layers[1], part)), expected, rtol=1e-5, atol=1e-6)
    head = dense["lm_head.weight"]  # of floats: rounded to 8 bits
    assert 0 < float((numbers(decoder, decoder.struct.head) - head).norm() / head.norm()) < 0.01
    plain = load_model(tmp_path, dtype="float32")
    assert (loaded.num_parameters, loaded.dtype) == (plain.num_parameters, torch.float32)


@pytest.mark.parametrize("name", ["gptq-activation-order", "fp8-row", None])
def test_what_has_no_tiles_is_loaded_for_torch(name: str | None, tmp_path: Path, native_library: Library) -> None:
    write_wide(tmp_path)
    if name is not None:
        quantise_folder(tmp_path, *FORMATS[name])
    assert isinstance(load(tmp_path, native_library).model, Decoder)
    assert isinstance(load(tmp_path, native_library, "int8").model, NativeDecoder)  # undone, and rounded again
