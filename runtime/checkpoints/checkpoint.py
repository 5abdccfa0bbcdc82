"""Checkpoints as named tensors: a folder of safetensors, or a GGUF file under the same Hugging Face names."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from ..protocol.errors import ModelError
from .gguf_blocks import repack
from .gguf_file import FORMATS
from .gguf_tensors import GGUFTensors
from .stored_weight import StoredWeight

_MAX_HEADER_BYTES = 100 << 20
_MAX_JSON_BYTES = 64 << 20
_ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2,
    "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip
_READABLE = ("F64", "F32", "F16", "BF16")


class Checkpoint(Protocol):
    """Named tensors whose shapes are known and checked against the file before any is read."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of all tensors by Hugging Face name."""

    def read(self, name: str) -> torch.Tensor:
        """Returns the tensor on the CPU, dequantised to a float dtype."""


# -- safetensors -------------------------------------------------------------------------------------------------


class SafetensorsCheckpoint:
    """The safetensors files of a Hugging Face folder, one or several.

    extra_dtypes    names of allowed dtypes besides floats

    Raises:
        ModelError: there are no such files, one in the index is missing, or a header does not fit its file.
    """

    def __init__(self, folder: Path, extra_dtypes: Collection[str] = ()) -> None:
        self._file_of: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, str] = {}
        readable = (*_READABLE, *extra_dtypes)
        for path in safetensors_files(folder):
            for name, (dtype, shape) in read_safetensors_header(path).items():
                if name in self._shapes:
                    raise ModelError(f"{path.name}: tensor {name!r} is in another file too")
                if dtype not in readable:
                    known = ", ".join(readable)
                    raise ModelError(
                        f"{path.name}: tensor {name!r} has dtype {dtype}, which is not supported (supported: {known})"
                    )
                self._file_of[name] = path
                self._shapes[name] = shape
                self._dtypes[name] = dtype

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See Checkpoint.shapes."""
        return self._shapes

    def dtype(self, name: str) -> str:
        """Returns a tensor's dtype as named in its file: "BF16", "F8_E4M3", ..."""
        return self._dtypes[name]

    def read(self, name: str) -> torch.Tensor:
        """See Checkpoint.read; returns a tensor of an extra dtype unchanged."""
        path = self._file_of[name]
        try:
            with safe_open(path, framework="pt") as file:
                tensor: torch.Tensor = file.get_tensor(name)
        except (OSError, SafetensorError) as error:  # the file was changed after its header was read
            raise ModelError(f"{path.name}: tensor {name!r} cannot be read: {error}") from error
        return tensor


def safetensors_files(folder: Path) -> list[Path]:
    """Returns the weight files of a folder by name: those of the index if there is one."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map = read_json_object(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise ModelError(f"{index.name}: weight_map must map tensor names to file names")
        names = sorted(set(weight_map.values()))
        for name in names:
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise ModelError(f"{index.name}: {name!r} is not the name of a safetensors file")
            if not (folder / name).is_file():
                raise ModelError(f"{index.name} names {name}, which is missing from {folder.name}")
        return [folder / name for name in names]
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    others = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
    if others:
        raise ModelError(f"{others[0]} is a pickle file, which can run code; convert the model to safetensors")
    raise ModelError(f"the folder {folder.name} has no model.safetensors")


def read_safetensors_header(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Returns name -> (dtype, shape), after checking that the tensors fill the file and do not overlap."""
    file_size = path.stat().st_size
    with path.open("rb") as file:
        header_size = int.from_bytes(file.read(8), "little")
        if file_size < 8 or header_size > min(file_size - 8, _MAX_HEADER_BYTES):
            raise ModelError(f"{path.name}: a header of {header_size} bytes does not fit the file of {file_size}")
        header = _parse_json(file.read(header_size), path.name)
    data_size = file_size - 8 - header_size
    header.pop("__metadata__", None)
    spans: list[tuple[int, int, str]] = []
    entries: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, entry in header.items():
        dtype, shape, start, stop = _header_entry(path.name, name, entry)
        if not 0 <= start <= stop <= data_size:
            raise ModelError(f"{path.name}: tensor {name!r} at {start} .. {stop} is outside the file")
        if math.prod(shape) * _ITEM_BYTES[dtype] != stop - start:
            raise ModelError(
                f"{path.name}: {dtype} tensor {name!r} of {list(shape)} does not take {stop - start} bytes"
            )
        spans.append((start, stop, name))
        entries[name] = (dtype, shape)
    spans.sort()
    ends = [(0, 0, "the header"), *spans, (data_size, data_size, "the end of the file")]
    for (_, stop, left), (start, _, right) in pairwise(ends):
        if stop > start:
            raise ModelError(f"{path.name}: tensors {left!r} and {right!r} overlap")
        if stop < start:  # such a file may be two at once, and the library refuses it
            raise ModelError(f"{path.name}: {start - stop} bytes between {left!r} and {right!r} belong to no tensor")
    return entries


def _header_entry(file_name: str, name: str, entry: object) -> tuple[str, tuple[int, ...], int, int]:
    """Returns dtype, shape, start and stop of one tensor, with their types checked."""
    dtype = entry.get("dtype") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
        raise ModelError(f"{file_name}: tensor {name!r} has no known dtype")
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if not isinstance(shape, list) or len(shape) > 8 or not all(type(dim) is int and dim >= 0 for dim in shape):
        raise ModelError(f"{file_name}: tensor {name!r} has an impossible shape {shape!r}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(offset) is int for offset in offsets):
        raise ModelError(f"{file_name}: tensor {name!r} has impossible data_offsets {offsets!r}")
    return dtype, tuple(shape), offsets[0], offsets[1]


def read_json_object(path: Path) -> dict[str, Any]:
    """Reads a JSON file whose top level is an object."""
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ModelError(f"{path.name}: more than {_MAX_JSON_BYTES >> 20} MiB of JSON")
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path.name}: cannot be read: {error.strerror}") from error
    return _parse_json(data, path.name)


def _parse_json(data: bytes, name: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = dict(pairs)
        if len(names) != len(pairs):
            raise ModelError(f"{name}: a name appears twice in one object")
        return names

    try:
        parsed = json.loads(data, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{name}: not valid JSON") from error
    if not isinstance(parsed, dict):
        raise ModelError(f"{name}: must hold a JSON object")
    return parsed


# -- GGUF --------------------------------------------------------------------------------------------------------


class GGUFCheckpoint(GGUFTensors):
    """The tensors of a GGUF file, in torch."""

    def read(self, name: str) -> torch.Tensor:
        """See Checkpoint.read."""
        return torch.from_numpy(self.read_numbers(name))

    def read_stored(self, name: str, device: torch.device | str = "cpu") -> StoredWeight:
        """See QuantisedCheckpoint.read_stored."""
        blocks, type_id, order = self.read_blocks(name)
        rows = None if order is None else torch.from_numpy(order)
        return StoredWeight(repack(blocks, FORMATS[type_id], rows, device))
