"""Safetensors folders: sharding, refusal of pickles, and malformed headers."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from bough.runtime.checkpoints.checkpoint import SafetensorsCheckpoint, read_json_object, read_safetensors_header
from bough.runtime.protocol.errors import ModelError


def write(path: Path, header: Any, *, data: int = 32, header_size: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if header_size is None else header_size) + raw + b"\0" * data)
    return path


def one(**changes: Any) -> dict[str, Any]:
    return {"t": {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 32]} | changes}


TWICE = b'{"t": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}, "t": {}}'
MALFORMED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "empty file": (lambda p: write(p, b"", data=0, header_size=0), "JSON"),
    "header beyond the file": (lambda p: write(p, one(), header_size=1 << 40), "does not fit"),
    "header one byte too long": (
        lambda p: write(p, one(), data=0, header_size=len(json.dumps(one())) + 1),
        "does not fit",
    ),
    "not JSON": (lambda p: write(p, b"{]"), "JSON"),
    "not an object": (lambda p: write(p, []), "JSON object"),
    "deep": (lambda p: write(p, b"[" * 200_000), "JSON"),
    "name twice": (lambda p: write(p, TWICE), "twice"),
    "negative offset": (lambda p: write(p, one(data_offsets=[-32, 0])), "outside"),
    "reversed offsets": (lambda p: write(p, one(data_offsets=[32, 0])), "outside"),
    "beyond the file": (lambda p: write(p, one(data_offsets=[16, 48])), "outside"),
    "huge shape": (lambda p: write(p, one(shape=[1 << 62, 1 << 62])), "does not take"),
    "shape wraps 64 bits": (lambda p: write(p, one(shape=[1 << 62, 4, 2])), "does not take"),
    "negative shape": (lambda p: write(p, one(shape=[-2, -4])), "impossible shape"),
    "fractional shape": (lambda p: write(p, one(shape=[2.0, 4])), "impossible shape"),
    "not-a-number shape": (lambda p: write(p, one(shape=[float("nan")])), "impossible shape"),
    "boolean shape": (lambda p: write(p, one(shape=[True])), "impossible shape"),
    "wrong dtype": (lambda p: write(p, one(dtype="F64")), "does not take"),
    "unknown dtype": (lambda p: write(p, one(dtype="F3")), "no known dtype"),
    "no offsets": (lambda p: write(p, {"t": {"dtype": "F32", "shape": [8]}}), "data_offsets"),
    "list for a dtype": (lambda p: write(p, one(dtype=["F32"])), "no known dtype"),
    "list for a tensor": (lambda p: write(p, {"t": [1]}), "no known dtype"),
    "bytes before": (lambda p: write(p, one(shape=[7], data_offsets=[4, 32])), "4 bytes .* belong to no tensor"),
    "bytes after": (lambda p: write(p, one(shape=[7], data_offsets=[0, 28])), "4 bytes .* belong to no tensor"),
    "bytes between": (
        lambda p: write(p, one(shape=[3], data_offsets=[0, 12]) | {"u": one(shape=[4], data_offsets=[16, 32])["t"]}),
        "4 bytes between 't' and 'u' belong to no tensor",
    ),
    "overlap": (lambda p: write(p, one() | {"u": one(shape=[1], data_offsets=[28, 32])["t"]}), "overlap"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_header_is_refused(name: str, tmp_path: Path) -> None:
    make, reason = MALFORMED[name]
    with pytest.raises(ModelError, match=reason):
        read_safetensors_header(make(tmp_path / "model.safetensors"))


def test_a_file_that_changes_after_its_header_was_read(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(4)}, tmp_path / "model.safetensors")
    checkpoint = SafetensorsCheckpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(ModelError, match=r"model.safetensors: tensor 'a' cannot be read"):
        checkpoint.read("a")


def test_json_of_any_size_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # takes no room on the disk
    with pytest.raises(ModelError, match=r"config.json: more than 64 MiB of JSON"):
        read_json_object(path)


def test_truncated_length(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\1\2")
    with pytest.raises(ModelError, match="does not fit"):
        read_safetensors_header(path)


def test_well_formed_header(tmp_path: Path) -> None:
    path = write(tmp_path / "model.safetensors", one() | {"__metadata__": {"format": "pt"}})
    assert read_safetensors_header(path) == {"t": ("F32", (2, 4))}


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    save_file({"a": torch.arange(4.0)}, tmp_path / "model-1.safetensors")
    save_file({"b": torch.ones(2, 3, dtype=torch.bfloat16)}, tmp_path / "model-2.safetensors")
    weight_map = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return tmp_path


def test_shards_are_one_checkpoint(sharded: Path) -> None:
    checkpoint = SafetensorsCheckpoint(sharded)
    assert checkpoint.shapes == {"a": (4,), "b": (2, 3)}
    assert checkpoint.read("a").tolist() == [0.0, 1.0, 2.0, 3.0]
    assert checkpoint.read("b").dtype == torch.bfloat16


def test_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "model-2.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-2\.safetensors, which is missing"):
        SafetensorsCheckpoint(sharded)


@pytest.mark.parametrize("file_name", ["../model-1.safetensors", "/etc/model.safetensors", "weights.bin", ".."])
def test_index_cannot_point_elsewhere(sharded: Path, file_name: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": file_name}}))
    with pytest.raises(ModelError, match="not the name of a safetensors file"):
        SafetensorsCheckpoint(sharded)


@pytest.mark.parametrize("index", ["{}", '{"weight_map": []}', '{"weight_map": {"a": 3}}'])
def test_malformed_index(sharded: Path, index: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match="weight_map"):
        SafetensorsCheckpoint(sharded)


def test_tensor_in_two_shards(sharded: Path) -> None:
    save_file({"a": torch.zeros(4)}, sharded / "model-2.safetensors")
    with pytest.raises(ModelError, match="in another file too"):
        SafetensorsCheckpoint(sharded)


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(4, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="dtype I8"):
        SafetensorsCheckpoint(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt"])
def test_pickle_is_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04.")
    with pytest.raises(ModelError, match=f"{name} is a pickle"):
        SafetensorsCheckpoint(tmp_path)


def test_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model\.safetensors"):
        SafetensorsCheckpoint(tmp_path)


def test_missing_json(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"absent\.json: cannot be read"):
        read_json_object(tmp_path / "absent.json")
