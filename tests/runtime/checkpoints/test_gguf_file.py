"""The GGUF reader: what it reads, and that no malformed file gets past it or makes it allocate."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bough.runtime.checkpoints.config import read_config
from bough.runtime.checkpoints.gguf_file import FORMATS, GGUFFile
from bough.runtime.checkpoints.inventory import read_facts
from bough.runtime.protocol.errors import ModelError

U8, U32, U64, I32, F32, BOOL, STRING, ARRAY = 0, 4, 10, 5, 6, 7, 8, 9


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str, type_id: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", type_id) + value


def strings(key: str, values: list[str], *, count: int | None = None) -> bytes:
    body = b"".join(map(text, values))
    return entry(key, ARRAY, struct.pack("<IQ", STRING, len(values) if count is None else count) + body)


def tensor(name: str, dims: list[int], type_id: int = 0, offset: int = 0) -> bytes:
    packed = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(name) + packed + struct.pack("<IQ", type_id, offset)


TOKENS = strings("tokenizer.ggml.tokens", ["a", "é", "<|end|>"])
TWO = [tensor("first", [4, 3]), tensor("second", [8], offset=64)]


def write(
    path: Path,
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    fields: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    num_fields: int | None = None,
    num_tensors: int | None = None,
    data: int = 96,
    keep: int | None = None,
) -> Path:
    fields = [TOKENS] if fields is None else fields
    tensors = TWO if tensors is None else tensors
    counts = (
        len(tensors) if num_tensors is None else num_tensors,
        len(fields) if num_fields is None else num_fields,
    )
    head = magic + struct.pack("<IQQ", version, *counts) + b"".join(fields + tensors)
    head += b"\0" * (-len(head) % 32)
    body = np.arange(data // 4, dtype="<f4").tobytes()
    path.write_bytes((head + body)[:keep])
    return path


def test_reads_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("number", 7)
    writer.add_float32("fraction", 0.5)
    writer.add_bool("flag", True)
    writer.add_string("name", "Ünï")
    writer.add_int64("negative", -(1 << 40))
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("fractions", [0.25, -1.5])
    writer.add_array("flags", [True, False])
    writer.add_token_list(["a", "b c", "ß"])
    writer.add_token_merges(["a b", "c d"])
    numbers = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    writer.add_tensor("cube", numbers)
    writer.add_tensor("half", numbers[0].astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    file = GGUFFile(path)
    assert file.metadata("number") == 7
    assert file.metadata("fraction") == 0.5
    assert file.metadata("flag") is True
    assert file.metadata("name") == "Ünï"
    assert file.metadata("negative") == -(1 << 40)
    assert file.metadata("numbers") == [1, -2, 3]
    assert file.metadata("fractions") == [0.25, -1.5]
    assert file.metadata("flags") == [True, False]
    assert file.metadata("absent") is None
    assert file.metadata("absent", 3) == 3
    assert file.metadata("numbers", most=3) == [1, -2, 3]
    for key, most in (("numbers", 2), ("name", 4)):
        with pytest.raises(ModelError, match=f"{key} .*at most {most} are accepted"):
            file.metadata(key, most=most)
    assert file.tokens == ["a", "b c", "ß"]
    assert file.num_tokens == 3
    assert file.merges == ["a b", "c d"]
    assert "general.architecture" in file.keys
    cube, half = file.tensors()["cube"], file.tensors()["half"]
    assert (cube.shape, cube.format.name) == ((2, 3, 4), "F32")
    assert (half.shape, half.format.name) == ((3, 4), "F16")
    assert np.array_equal(file.blocks(cube).view("<f4").reshape(2, 3, 4), numbers)
    assert np.array_equal(file.blocks(half).view("<f2"), numbers[0].astype(np.float16))


def test_formats_are_the_formats_of_the_gguf_package() -> None:
    for block_format in FORMATS.values():
        kind = gguf.GGMLQuantizationType[block_format.name]
        assert kind.value == block_format.type_id
        assert gguf.GGML_QUANT_SIZES[kind] == (block_format.size, block_format.num_bytes)


HUGE = 1 << 62
LONG = struct.pack("<IQ", U8, 1 << 20) + bytes(1 << 20)
MALFORMED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "empty": (lambda p: write(p, keep=0), "cannot be read"),
    "not gguf": (lambda p: write(p, magic=b"GGML"), "not a GGUF file"),
    "version": (lambda p: write(p, version=1), "version"),
    "big endian": (lambda p: write(p, version=3 << 24), "version"),
    "cut in the header": (lambda p: write(p, keep=18), "ends inside the header"),
    "cut in the metadata": (lambda p: write(p, keep=70), "ends inside"),
    "cut in the tensor list": (lambda p: write(p, fields=[], keep=60), "ends inside"),
    "cut in the data": (lambda p: write(p, data=64), "outside the file"),
    "too many tensors": (lambda p: write(p, num_tensors=HUGE), "tensors, at most"),
    "too many keys": (lambda p: write(p, num_fields=HUGE), "metadata keys, at most"),
    "more keys than there are": (lambda p: write(p, fields=[], tensors=[], num_fields=60_000), "ends inside"),
    "endless key": (lambda p: write(p, fields=[struct.pack("<Q", HUGE)]), "ends inside a metadata key"),
    "long key": (lambda p: write(p, fields=[entry("k" * 5000, BOOL, b"\1")]), "at most"),
    "key twice": (lambda p: write(p, fields=[entry("k", BOOL, b"\1")] * 2), "twice"),
    "key not text": (lambda p: write(p, fields=[text(b"\xff\xfe")]), "UTF-8"),
    "unknown type": (lambda p: write(p, fields=[entry("k", 77, b"\1")]), "unknown type 77"),
    "endless value": (lambda p: write(p, fields=[entry("k", STRING, struct.pack("<Q", HUGE))]), "ends inside k"),
    "endless array": (lambda p: write(p, fields=[entry("k", ARRAY, struct.pack("<IQ", I32, HUGE))]), "ends inside k"),
    "endless list": (lambda p: write(p, fields=[strings("k", ["a"], count=HUGE)]), "strings claimed"),
    "long list": (lambda p: write(p, fields=[strings("k", ["a"], count=20)]), "ends inside k|strings claimed"),
    "nested array": (lambda p: write(p, fields=[entry("k", ARRAY, struct.pack("<IQ", ARRAY, 1))]), "unknown type"),
    "alignment": (lambda p: write(p, fields=[entry("general.alignment", U32, b"\3\0\0\0")]), "alignment"),
    "no alignment": (lambda p: write(p, fields=[entry("general.alignment", U32, b"\0\0\0\0")]), "alignment"),
    "alignment is text": (lambda p: write(p, fields=[entry("general.alignment", STRING, text("x"))]), "alignment"),
    "alignment is long": (lambda p: write(p, fields=[entry("general.alignment", ARRAY, LONG)]), "alignment"),
    "tensor twice": (lambda p: write(p, tensors=[TWO[0], TWO[0]]), "twice"),
    "no dimension": (lambda p: write(p, tensors=[tensor("t", [])]), "dimensions"),
    "many dimensions": (lambda p: write(p, tensors=[tensor("t", [1] * 5)]), "dimensions"),
    "huge dimension": (lambda p: write(p, tensors=[tensor("t", [HUGE, HUGE])]), "outside the file"),
    "product wraps 64 bits": (lambda p: write(p, tensors=[tensor("t", [1 << 32, 1 << 32])]), "outside the file"),
    "empty dimension": (lambda p: write(p, tensors=[tensor("t", [4, 0])]), "empty"),
    "refused type": (lambda p: write(p, tensors=[tensor("t", [256], 10)]), "Q2_K"),
    "unknown tensor type": (lambda p: write(p, tensors=[tensor("t", [4], 1000)]), "number 1000"),
    "broken block": (lambda p: write(p, tensors=[tensor("t", [33], 2)]), "multiple of 32"),
    "offset outside": (lambda p: write(p, tensors=[tensor("t", [4], 0, 1 << 20)]), "outside the file"),
    "offset wraps": (lambda p: write(p, tensors=[tensor("t", [4], 0, (1 << 64) - 32)]), "outside the file"),
    "offset unaligned": (lambda p: write(p, tensors=[tensor("t", [4], 0, 5)]), "multiple of 32"),
    "overlap": (lambda p: write(p, tensors=[tensor("t", [16]), tensor("u", [4], 0, 32)]), "overlap"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_file_is_refused(name: str, tmp_path: Path) -> None:
    make, reason = MALFORMED[name]
    path = make(tmp_path / "bad.gguf")
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=reason):
            GGUFFile(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_the_unharmed_file_is_accepted(tmp_path: Path) -> None:
    file = GGUFFile(write(tmp_path / "good.gguf"))
    assert file.tokens == ["a", "é", "<|end|>"]
    assert file.merges == []
    assert file.blocks(file.tensors()["second"]).view("<f4").tolist() == [list(range(16, 24))]


@pytest.mark.parametrize("value", [LONG, struct.pack("<IQ", STRING, 1 << 17) + bytes(1 << 20)])
def test_values_are_bounded_unless_more_is_asked_for(value: bytes, tmp_path: Path) -> None:
    file = GGUFFile(write(tmp_path / "long.gguf", fields=[entry("general.architecture", ARRAY, value)]))
    for read in (
        lambda: file.metadata("general.architecture"),
        lambda: read_config(file),
        lambda: read_facts(file.path),
    ):
        tracemalloc.start()
        try:
            with pytest.raises(ModelError, match=r"architecture has .* elements"):
                read()
            assert tracemalloc.get_traced_memory()[1] < 1 << 19
        finally:
            tracemalloc.stop()


def test_tokens_of_another_type_are_refused(tmp_path: Path) -> None:
    numbers = entry("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQi", I32, 1, 5))
    with pytest.raises(ModelError, match="array of strings"):
        GGUFFile(write(tmp_path / "bad.gguf", fields=[numbers])).tokens  # noqa: B018


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        GGUFFile(tmp_path / "absent.gguf")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 250), value=st.binary(min_size=1, max_size=8), keep=st.integers(0, 400))
def test_random_damage_gives_a_model_error_or_a_valid_file(tmp_path: Path, at: int, value: bytes, keep: int) -> None:
    raw = bytearray(write(tmp_path / "good.gguf").read_bytes())
    raw[at : at + len(value)] = value
    path = tmp_path / "damaged.gguf"
    path.write_bytes(raw[: max(len(raw) - keep, 0)] if keep < 100 else raw)
    try:
        file = GGUFFile(path)
        for key in file.keys:
            file.metadata(key)
    except ModelError:
        return
    for placed in file.tensors().values():
        assert file.blocks(placed).size == placed.stop - placed.start
