"""Reads a GGUF file: metadata decoded on demand, tensors as byte ranges, every length checked before it is used."""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..protocol.errors import ModelError

Scalar = int | float | bool | str
Value = Scalar | list[int] | list[float] | list[bool] | list[str]

_MAX_ENTRIES = 1 << 16  # metadata keys, and tensors: real files have under 5,000
_MAX_NAME_BYTES = 1 << 12
_MAX_VALUE = 1 << 12  # elements or bytes of a value: some settings have one for each layer
_MAX_SKIPPED = 1 << 23  # strings of an unused array: a second of skipping
_MAX_TOKENS = 1 << 22  # and merges: real files have under 2^19
_STRING, _ARRAY = 8, 9
_SCALARS: Mapping[int, struct.Struct] = {
    type_id: struct.Struct("<" + code)
    for type_id, code in zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True)
}
_LENGTH = struct.Struct("<Q")


class BlockFormat(NamedTuple):
    """Storage of a tensor type: blocks of `size` numbers in `num_bytes` bytes."""

    name: str
    type_id: int
    size: int
    num_bytes: int


FORMATS: Mapping[int, BlockFormat] = {
    entry.type_id: entry
    for entry in (
        BlockFormat("F32", 0, 1, 4),
        BlockFormat("F16", 1, 1, 2),
        BlockFormat("Q4_0", 2, 32, 18),
        BlockFormat("Q4_1", 3, 32, 20),
        BlockFormat("Q5_0", 6, 32, 22),
        BlockFormat("Q5_1", 7, 32, 24),
        BlockFormat("Q8_0", 8, 32, 34),
        BlockFormat("Q4_K", 12, 256, 144),
        BlockFormat("Q5_K", 13, 256, 176),
        BlockFormat("Q6_K", 14, 256, 210),
        BlockFormat("BF16", 30, 1, 2),
    )
}
_OTHER_FORMATS: Mapping[int, str] = {  # known only to be refused by name
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


@dataclass(frozen=True)
class GGUFTensor:
    """Place of a tensor in the file. `shape` is row major (the file stores it reversed); `start .. stop` in bytes."""

    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    start: int
    stop: int


class _Field(NamedTuple):
    """Place of a metadata value: `element_type` and `length` are those of an array, `stop` is the value's end."""

    type_id: int
    element_type: int
    length: int
    start: int
    stop: int = 0


class GGUFFile:
    """A memory-mapped GGUF file whose header has been read and checked; the numbers stay on disk until needed.

    Raises:
        ModelError: the file is not GGUF, is truncated, or has an impossible length, offset or type.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise ModelError(f"{self.path.name}: cannot be read: {error}") from error
        self._size = len(self._data)
        self._fields: dict[str, _Field] = {}
        self._tensors: dict[str, GGUFTensor] = {}
        self._read_header()

    # -- metadata ------------------------------------------------------------------------------------------------

    @property
    def keys(self) -> list[str]:
        """Metadata keys in file order."""
        return list(self._fields)

    def metadata(self, key: str, default: Value | None = None, *, most: int = _MAX_VALUE) -> Value | None:
        """Decodes the value of a metadata key; returns `default` if the file has no such key.

        Raises:
            ModelError: the value is a list of more than `most` elements, or a text of more bytes.
        """
        field = self._fields.get(key)
        if field is None:
            return default
        if field.type_id == _ARRAY:
            if field.length > most:
                raise self._fail(f"{key} has {field.length} elements, at most {most} are accepted")
            return self._array(field, key)
        if field.type_id == _STRING:
            return self._string(field.start, key, most)[0]
        value: Scalar = _SCALARS[field.type_id].unpack_from(self._data, field.start)[0]
        return value

    @property
    def tokens(self) -> list[str]:
        """Returns the token strings of the vocabulary, by id."""
        return self._token_strings("tokenizer.ggml.tokens")

    @property
    def merges(self) -> list[str]:
        """Returns the byte-pair merges, "left right", by rank; empty if the tokenizer has none."""
        return self._token_strings("tokenizer.ggml.merges")

    @property
    def num_tokens(self) -> int:
        """Returns the number of token strings in the vocabulary, without decoding them."""
        field = self._fields.get("tokenizer.ggml.tokens")
        return field.length if field is not None and field.type_id == _ARRAY else 0

    # -- tensors -------------------------------------------------------------------------------------------------

    def tensors(self) -> Mapping[str, GGUFTensor]:
        """Returns the tensors by name; each lies inside the file and none overlaps another."""
        return self._tensors

    def blocks(self, tensor: GGUFTensor) -> npt.NDArray[np.uint8]:
        """Returns the tensor's bytes as [rows, bytes per row], a read-only view of the file."""
        flat = np.frombuffer(self._data, dtype=np.uint8, count=tensor.stop - tensor.start, offset=tensor.start)
        return flat.reshape(math.prod(tensor.shape[:-1]), -1)

    # -- reading -------------------------------------------------------------------------------------------------

    def _fail(self, message: str) -> ModelError:
        return ModelError(f"{self.path.name}: {message}")

    def _number(self, type_id: int, offset: int, what: str) -> tuple[int, int]:
        """Reads an integer scalar; returns it with the offset after it."""
        packed = _SCALARS[type_id]
        if offset + packed.size > self._size:
            raise self._fail(f"the file ends inside {what}")
        value: int = packed.unpack_from(self._data, offset)[0]
        return value, offset + packed.size

    def _string(self, offset: int, what: str, limit: int | None = None) -> tuple[str, int]:
        length, start = self._number(10, offset, what)
        if length > self._size - start:
            raise self._fail(f"the file ends inside {what}")
        if limit is not None and length > limit:
            raise self._fail(f"{what} is {length} bytes long, at most {limit} are accepted")
        try:
            return self._data[start : start + length].decode(), start + length
        except UnicodeDecodeError as error:
            raise self._fail(f"{what} is not UTF-8: {error}") from error

    def _read_header(self) -> None:
        if self._data[:4] != b"GGUF":
            raise self._fail("not a GGUF file (it does not begin with GGUF)")
        version, offset = self._number(4, 4, "the header")
        if version not in (2, 3):
            raise self._fail(f"GGUF version must be 2 or 3 in little-endian order, got {version}")
        num_tensors, offset = self._number(10, offset, "the header")
        num_fields, offset = self._number(10, offset, "the header")
        for what, count in (("tensors", num_tensors), ("metadata keys", num_fields)):
            if count > _MAX_ENTRIES:
                raise self._fail(f"the header claims {count} {what}, at most {_MAX_ENTRIES} are accepted")
        for _ in range(num_fields):
            offset = self._read_field(offset)
        entries: list[tuple[str, tuple[int, ...], BlockFormat, int]] = []
        for _ in range(num_tensors):
            entry, offset = self._read_tensor_entry(offset)
            entries.append(entry)
        alignment = self.metadata("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            raise self._fail(f"general.alignment must be a power of two up to 2^20, got {alignment!r}")
        self._place_tensors(entries, (offset + alignment - 1) // alignment * alignment, alignment)

    def _read_field(self, offset: int) -> int:
        """Records one metadata entry and returns the offset after it."""
        key, offset = self._string(offset, "a metadata key", _MAX_NAME_BYTES)
        if key in self._fields:
            raise self._fail(f"metadata key {key!r} appears twice")
        type_id, offset = self._number(4, offset, key)
        if type_id == _ARRAY:
            element_type, offset = self._number(4, offset, key)
            count, offset = self._number(10, offset, key)
            stop = self._skip_array(key, element_type, count, offset)
            self._fields[key] = _Field(type_id, element_type, count, offset, stop)
            return stop
        self._fields[key] = _Field(type_id, -1, 1, offset)
        if type_id == _STRING:
            return self._skip_strings(key, 1, offset)
        if type_id not in _SCALARS:
            raise self._fail(f"{key} has unknown type {type_id}")
        if offset + _SCALARS[type_id].size > self._size:
            raise self._fail(f"the file ends inside {key}")
        return offset + _SCALARS[type_id].size

    def _skip_array(self, key: str, element_type: int, count: int, offset: int) -> int:
        if element_type == _STRING:
            return self._skip_strings(key, count, offset)
        if element_type not in _SCALARS:  # nested arrays included: no known key needs one
            raise self._fail(f"{key} is an array of unknown type {element_type}")
        stop = offset + count * _SCALARS[element_type].size
        if stop > self._size:
            raise self._fail(f"the file ends inside {key}: {count} elements claimed")
        return stop

    def _skip_strings(self, key: str, count: int, offset: int) -> int:
        if count > min((self._size - offset) // _LENGTH.size, _MAX_SKIPPED):
            raise self._fail(f"{key} has too many strings, or the file ends inside it: {count} strings claimed")
        data, last, unpack = self._data, self._size - _LENGTH.size, _LENGTH.unpack_from
        for _ in range(count):  # 100,000 in a common file: only skips them
            if offset > last:
                raise self._fail(f"the file ends inside {key}")
            offset += _LENGTH.size + unpack(data, offset)[0]
        if offset > self._size:
            raise self._fail(f"the file ends inside {key}")
        return offset

    def _read_tensor_entry(self, offset: int) -> tuple[tuple[str, tuple[int, ...], BlockFormat, int], int]:
        name, offset = self._string(offset, "a tensor name", _MAX_NAME_BYTES)
        num_dims, offset = self._number(4, offset, name)
        if not 1 <= num_dims <= 4:
            raise self._fail(f"tensor {name!r} must have 1 to 4 dimensions, got {num_dims}")
        dims = []
        for _ in range(num_dims):
            dim, offset = self._number(10, offset, name)
            dims.append(dim)
        type_id, offset = self._number(4, offset, name)
        if type_id not in FORMATS:
            known = ", ".join(entry.name for entry in FORMATS.values())
            spelled = _OTHER_FORMATS.get(type_id, f"number {type_id}")
            raise self._fail(f"tensor {name!r} has type {spelled}, which is not supported (supported: {known})")
        relative, offset = self._number(10, offset, name)
        return (name, tuple(reversed(dims)), FORMATS[type_id], relative), offset

    def _place_tensors(
        self, entries: list[tuple[str, tuple[int, ...], BlockFormat, int]], data_start: int, alignment: int
    ) -> None:
        for name, shape, block_format, relative in entries:
            if name in self._tensors:
                raise self._fail(f"tensor {name!r} appears twice")
            if min(shape) < 1:
                raise self._fail(f"tensor {name!r} has an empty dimension: {shape}")
            if shape[-1] % block_format.size:
                raise self._fail(f"tensor {name!r}: rows of {shape[-1]} are not a multiple of {block_format.size}")
            num_bytes = math.prod(shape) // block_format.size * block_format.num_bytes
            start = data_start + relative
            if relative % alignment:
                raise self._fail(f"tensor {name!r}: offset {relative} is not a multiple of {alignment}")
            if start + num_bytes > self._size:
                raise self._fail(f"tensor {name!r} of {num_bytes} bytes at {start} is outside the file")
            self._tensors[name] = GGUFTensor(name, shape, block_format, start, start + num_bytes)
        ordered = sorted(self._tensors.values(), key=lambda tensor: tensor.start)
        for left, right in pairwise(ordered):
            if left.stop > right.start:
                raise self._fail(f"tensors {left.name!r} and {right.name!r} overlap")

    def _array(self, field: _Field, key: str) -> Value:
        if field.element_type == _STRING:
            return self._string_array(field, key)
        packed = _SCALARS[field.element_type]
        values = np.frombuffer(self._data, np.dtype("<" + packed.format[1:]), field.length, field.start)
        elements: list[int] | list[float] | list[bool] = values.tolist()
        return elements

    def _string_array(self, field: _Field, key: str) -> list[str]:
        """Reads the strings of an array, whose lengths were checked with the header."""
        data = self._data[field.start : field.stop]
        strings, offset, unpack, size = [], 0, _LENGTH.unpack_from, _LENGTH.size
        try:
            for _ in range(field.length):
                start = offset + size
                offset = start + unpack(data, offset)[0]
                strings.append(data[start:offset].decode())
        except UnicodeDecodeError as error:
            raise self._fail(f"{key} is not UTF-8: {error}") from error
        return strings

    def _token_strings(self, key: str) -> list[str]:
        field = self._fields.get(key)
        if field is None:
            return []
        if field.element_type != _STRING:
            raise self._fail(f"{key} must be an array of strings")
        if field.length > _MAX_TOKENS:
            raise self._fail(f"{key} has {field.length} elements, at most {_MAX_TOKENS} are accepted")
        return self._string_array(field, key)
