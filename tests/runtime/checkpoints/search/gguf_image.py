"""A GGUF file taken apart, so that single fields of it can be changed, and put together again however wrong it is."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from typing import Any

from .mutate import NUMBERS, TEXTS, change_bytes

_STRING, _ARRAY = 8, 9
_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_ALIGNMENT = 32


@dataclass
class Field:
    """A metadata entry. `count` is what the file claims of an array; None: what is true."""

    key: str
    type_id: int
    value: Any
    element_type: int = 0
    count: int | None = None


@dataclass
class Tensor:
    """An entry of the list of tensors; `data` is at `offset` in the file however that is changed."""

    name: str
    dims: list[int]
    type_id: int
    offset: int
    data: bytes
    num_dims: int | None = None


@dataclass
class GGUFImage:
    """All of a file's parts, in order."""

    fields: list[Field] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    version: int = 3
    num_fields: int | None = None
    num_tensors: int | None = None

    def add_tensor(self, name: str, dims: list[int], type_id: int, data: bytes) -> None:
        """Appends a tensor whose data follow the last one's."""
        last = self.tensors[-1] if self.tensors else None
        offset = 0 if last is None else -(-(last.offset + len(last.data)) // _ALIGNMENT) * _ALIGNMENT
        self.tensors.append(Tensor(name, dims, type_id, offset, data))

    def to_bytes(self) -> bytes:
        """The file."""
        body = bytearray()
        for tensor in self.tensors:
            body += b"\0" * (-len(body) % _ALIGNMENT) + tensor.data
        counts = (
            len(self.tensors) if self.num_tensors is None else self.num_tensors,
            len(self.fields) if self.num_fields is None else self.num_fields,
        )
        head = b"GGUF" + struct.pack("<I", self.version % (1 << 32)) + _number(10, counts[0]) + _number(10, counts[1])
        head += b"".join(map(_field_bytes, self.fields)) + b"".join(map(_entry_bytes, self.tensors))
        return head + b"\0" * (-len(head) % _ALIGNMENT) + bytes(body)


def _text(value: str) -> bytes:
    raw = value.encode(errors="surrogatepass")
    return struct.pack("<Q", len(raw)) + raw


def _number(type_id: int, value: Any) -> bytes:
    """The number in the type's bytes, wrapped around where it does not fit."""
    code = _CODES[type_id]
    if code in "fd":
        try:
            return struct.pack("<" + code, float(value))
        except (OverflowError, ValueError):
            return struct.pack("<" + code, float("inf"))
    if isinstance(value, float):
        value = int(value) if abs(value) < 1e30 else 0  # NaN is neither
    size = struct.calcsize("<" + code)
    return (int(value) % (1 << (8 * size))).to_bytes(size, "little")


def _value_bytes(type_id: int, value: Any) -> bytes:
    if type_id == _STRING:
        return _text(value if isinstance(value, str) else str(value))
    return _number(type_id, value if isinstance(value, int | float) else 0)


def _field_bytes(entry: Field) -> bytes:
    head = _text(entry.key) + struct.pack("<I", entry.type_id)
    if entry.type_id != _ARRAY:
        return head + (_value_bytes(entry.type_id, entry.value) if entry.type_id in {*_CODES, _STRING} else b"\1\2\3\4")
    values = entry.value if isinstance(entry.value, list) else [entry.value]
    known = entry.element_type in {*_CODES, _STRING}
    body = b"".join(_value_bytes(entry.element_type, value) for value in values) if known else b"\0" * 16
    count = len(values) if entry.count is None else entry.count
    return head + struct.pack("<I", entry.element_type) + _number(10, count) + body


def _entry_bytes(tensor: Tensor) -> bytes:
    num_dims = len(tensor.dims) if tensor.num_dims is None else tensor.num_dims
    dims = b"".join(_number(10, dim) for dim in tensor.dims)
    return (
        _text(tensor.name) + struct.pack("<I", num_dims % (1 << 32)) + dims
        + struct.pack("<I", tensor.type_id % (1 << 32)) + _number(10, tensor.offset)
    )  # fmt: skip


def change_image(rng: random.Random, image: GGUFImage) -> bytes:
    """One to three changes of fields, tensors or counts; one file in five has its bytes changed instead."""
    if rng.random() < 0.2:
        return change_bytes(rng, image.to_bytes())
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice((_change_field, _change_field, _change_field, _change_tensor, _change_tensor, _change_counts))(
            rng, image
        )
    return image.to_bytes()


def _change_field(rng: random.Random, image: GGUFImage) -> None:
    if not image.fields:
        return
    place = rng.randrange(len(image.fields))
    entry = image.fields[place]
    match rng.randrange(12):
        case 0:
            del image.fields[place]
        case 1:
            image.fields.append(entry)
        case 2:
            entry.key = rng.choice((*TEXTS, entry.key + "x", "general.alignment", "tokenizer.ggml.pre"))
        case 3:
            entry.type_id = rng.choice((*_CODES, _STRING, _ARRAY, 13, 77, 1 << 31))
        case 4 if isinstance(entry.value, list):
            entry.count = rng.choice(
                (0, 1, len(entry.value) - 1, len(entry.value) + 1, 1 << 20, 1 << 40, (1 << 64) - 1)
            )
        case 4 | 5:
            image.fields.insert(0, Field("general.alignment", 4, rng.choice((0, 1, 3, 8, 64, 1 << 20, 1 << 31))))
        case 6 if isinstance(entry.value, list):
            entry.element_type = rng.choice((*_CODES, _STRING, _ARRAY, 77))
        case _ if isinstance(entry.value, list):
            entry.value = _other_list(rng, entry.value)
        case _:
            entry.value = _other_scalar(rng, entry.value)


def _other_scalar(rng: random.Random, value: Any) -> Any:
    if isinstance(value, str):
        return rng.choice((*TEXTS, value[:-1], value + "x"))
    return rng.choice(NUMBERS) if rng.random() < 0.8 else value + rng.choice((-1, 1))


def _other_list(rng: random.Random, values: list[Any]) -> list[Any]:
    changed = list(values)
    match rng.randrange(6):
        case 0:
            return []
        case 1:
            return changed * rng.choice((2, 50))
        case 2:
            return changed[: rng.randrange(len(changed) + 1)]
        case 3:
            rng.shuffle(changed)
        case _ if changed:
            for _ in range(rng.choice((1, 1, 5, 100))):
                place = rng.randrange(len(changed))
                changed[place] = rng.choice((_other_scalar(rng, changed[place]), changed[rng.randrange(len(changed))]))
    return changed


def _change_tensor(rng: random.Random, image: GGUFImage) -> None:
    if not image.tensors:
        return
    place = rng.randrange(len(image.tensors))
    tensor = image.tensors[place]
    match rng.randrange(10):
        case 0:
            del image.tensors[place]
        case 1:
            image.tensors.append(tensor)
        case 2:
            other = rng.choice(image.tensors).name
            tensor.name = rng.choice((*TEXTS, other, tensor.name + "x", "rope_freqs.weight", "blk.0.attn_q.bias"))
        case 3 | 4:
            numbers = (0, 1, 2, 31, 33, 64, 1 << 20, 1 << 31, 1 << 32, 1 << 40, (1 << 62) + 32, (1 << 64) - 32)
            tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(numbers)
        case 5:
            tensor.dims = rng.choice((tensor.dims[::-1], [*tensor.dims, 1], tensor.dims[:1], [1, *tensor.dims]))
        case 6:
            tensor.num_dims = rng.choice((0, 1, 2, 4, 5, 1 << 31, (1 << 32) - 1))
        case 7:
            tensor.type_id = rng.choice((*range(40), 1 << 31, (1 << 32) - 1))
        case 8:
            near = (tensor.offset + 32, tensor.offset - 32)
            tensor.offset = rng.choice((0, 1, 16, 32, *near, 1 << 40, (1 << 63), (1 << 64) - 32))
        case _:
            tensor.data = change_bytes(rng, tensor.data) if rng.random() < 0.5 else rng.randbytes(len(tensor.data))


def _change_counts(rng: random.Random, image: GGUFImage) -> None:
    counts = (0, 1, 2, 1000, 65_535, 65_536, 65_537, 1 << 32, 1 << 63, (1 << 64) - 1)
    match rng.randrange(3):
        case 0:
            image.num_fields = rng.choice(counts)
        case 1:
            image.num_tensors = rng.choice(counts)
        case _:
            image.version = rng.choice((0, 1, 2, 3, 4, 3 << 24, (1 << 32) - 1))
