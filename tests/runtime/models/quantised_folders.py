"""Writes Hugging Face folders in the formats of quantisers, number by number, and says what they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
Writer = Callable[[np.random.Generator, int, int], tuple[Tensors, np.ndarray]]
"""(random numbers, rows, columns) -> the tensors of a linear layer, without its name, and its weight."""

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def quantise_folder(folder: Path, settings: dict[str, Any], write: Writer, *, seed: int = 0) -> Tensors:
    """Rewrites a folder's projections by `write`, and its config; returns the dense tensors that it now stands for."""
    random = np.random.default_rng(seed)
    dense = load_file(folder / "model.safetensors")
    stored: Tensors = {}
    for name, tensor in dense.items():
        base = name.removesuffix(".weight")
        if tensor.dim() != 2 or base.rpartition(".")[2] not in PROJECTIONS:
            stored[name] = tensor
            continue
        parts, weight = write(random, *tensor.shape)
        stored |= {f"{base}.{part}": value for part, value in parts.items()}
        dense[name] = torch.from_numpy(weight)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": settings}
    (folder / "config.json").write_text(json.dumps(config))
    return dense


def signed(words: np.ndarray) -> torch.Tensor:
    """Unsigned words as the int32 that files have."""
    return torch.from_numpy((words & 0xFFFFFFFF).astype(np.uint32).view(np.int32).copy())


def write_awq(group: int) -> Writer:
    def write(random: np.random.Generator, rows: int, columns: int) -> tuple[Tensors, np.ndarray]:
        codes = random.integers(0, 16, (rows, columns))
        groups = columns // group
        zeros = random.integers(0, 16, (rows, groups))
        scales = random.uniform(0.01, 0.05, (rows, groups)).astype(np.float16)
        qweight = np.zeros((columns, rows // 8), np.uint64)
        qzeros = np.zeros((groups, rows // 8), np.uint64)
        for row in range(rows):
            # Within eight rows, the even ones come first, then the odd ones, from the lowest bits up.
            place = [0, 2, 4, 6, 1, 3, 5, 7].index(row % 8)
            for column in range(columns):
                qweight[column, row // 8] += int(codes[row, column]) << (4 * place)
            for g in range(groups):
                qzeros[g, row // 8] += int(zeros[row, g]) << (4 * place)
        weight = (codes - zeros.repeat(group, 1)) * scales.astype(np.float32).repeat(group, 1)
        tensors = {
            "qweight": signed(qweight),
            "qzeros": signed(qzeros),
            "scales": torch.from_numpy(np.ascontiguousarray(scales.T)),
        }
        return tensors, weight.astype(np.float32)

    return write


def write_gptq(
    group: int, *, bits: int = 4, version: int = 1, shuffled: bool = False, symmetric: bool = False, bias: bool = False
) -> Writer:
    """shuffled: the columns' groups are mixed, alike in all layers of as many columns, as activation order does it."""

    def write(random: np.random.Generator, rows: int, columns: int) -> tuple[Tensors, np.ndarray]:
        most, per_word = 1 << bits, 32 // bits
        size = columns if group == -1 else group
        group_of = np.arange(columns) // size
        if shuffled:
            np.random.default_rng(columns).shuffle(group_of)
        groups = columns // size
        codes = random.integers(0, most, (rows, columns))
        zeros = np.full((rows, groups), most // 2) if symmetric else random.integers(1, most, (rows, groups))
        scales = random.uniform(0.01, 0.05, (rows, groups)).astype(np.float16) * np.float16(8 / most * 2)
        qweight = np.zeros((columns // per_word, rows), np.uint64)
        qzeros = np.zeros((groups, rows // per_word), np.uint64)
        for row in range(rows):
            for column in range(columns):
                qweight[column // per_word, row] += int(codes[row, column]) << (bits * (column % per_word))
            for g in range(groups):
                stored = int(zeros[row, g]) - (1 if version == 1 else 0)
                qzeros[g, row // per_word] += stored << (bits * (row % per_word))
        weight = (codes - zeros[:, group_of]) * scales.astype(np.float32)[:, group_of]
        tensors = {
            "qweight": signed(qweight),
            "qzeros": signed(qzeros),
            "scales": torch.from_numpy(np.ascontiguousarray(scales.T)),
            "g_idx": torch.from_numpy(group_of.astype(np.int32)),
        }
        if bias:
            tensors["bias"] = torch.zeros(rows, dtype=torch.float16)
        return tensors, weight.astype(np.float32)

    return write


def write_fp8(scale: str) -> Writer:
    """scale: "tensor", "row", or "block"."""

    def write(random: np.random.Generator, rows: int, columns: int) -> tuple[Tensors, np.ndarray]:
        codes = torch.from_numpy(random.normal(size=(rows, columns)) * 40).to(torch.float8_e4m3fn)
        if scale == "tensor":
            scales = torch.tensor(0.003)
            spread = scales.reshape(1, 1)
        elif scale == "row":
            scales = torch.from_numpy(random.uniform(0.001, 0.005, (rows, 1))).float()
            spread = scales
        else:
            blocks = (-(-rows // 128), -(-columns // 128))
            scales = torch.from_numpy(random.uniform(0.001, 0.005, blocks)).float()
            spread = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :columns]
        tensors = {"weight": codes, "weight_scale_inv" if scale == "block" else "weight_scale": scales}
        if scale == "tensor":
            tensors["input_scale"] = torch.tensor(1.0)
        return tensors, (codes.float() * spread).numpy()

    return write
