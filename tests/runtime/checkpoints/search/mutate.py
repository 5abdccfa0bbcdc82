"""Changes files of models as an attacker would: numbers at their limits, lengths that lie, bits, cuts and splices."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from typing import Any

Change = Callable[[random.Random, bytes], bytes]

NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 7, 8, 16, 31, 33, 64, 127, 255, 256, 257, 258, 259, 1000, 4096, 65_535, 65_536, 1 << 20, 1 << 24,
    (1 << 31) - 1, 1 << 31, -(1 << 31), (1 << 32) - 1, 1 << 32, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
    1 << 64, 10**12, 10**18, 10**30, 10**400, 0.0, -0.0, 0.5, 1.0, 1.5, -1.5, 1e-300, 1e-45, 1e-8, 3.4e38, 1e39, 1e300,
    1.7e308, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
TEXTS = (
    "", "a", "\0", "\ud800", "é", "▁", "<0x0A>", "<|im_end|>", "../../etc/passwd", "x" * 5000, "(a+)+$", "(",
    "[[:alpha:]", "\\p{L}+", "(?:(?:(?:a{1000}){1000}){1000})", "{{ 1 }}",
    "{% for i in range(99999) %}{{ i }}{% endfor %}", "{{ 'a' * 999999999 }}", "{%", "F64", "F16", "BF16", "I8",
    "F8_E4M3", "I32", "llama", "mistral", "qwen2", "qwen3", "smollm3", "gpt2", "gemma3_text", "yarn", "llama3",
    "linear", "default", "dynamic", "silu", "sliding_attention", "full_attention", "gptq", "awq", "fp8", "BPE",
    "Unigram", "WordPiece", "WordLevel", "ByteLevel", "Metaspace", "Sequence", "Replace", "Prepend", "NFKC",
    "Precompiled", "Split", "model.safetensors",
)  # fmt: skip
BYTE_STRINGS = (
    b"\0",
    b"\xff",
    b"\x80",
    b"\x7f",
    b"GGUF",
    b"}",
    b"{",
    b'"',
    b"[",
    b",",
    b"NaN",
    b"1e999",
    b"null",
    b"\\u",
)


# Bytes


def change_bytes(rng: random.Random, data: bytes) -> bytes:
    """One to four changes that know nothing of the format; those near the beginning are likelier."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if not changed:
            return bytes(changed)
        place = min(int(len(changed) * rng.random() ** rng.choice((1, 4, 8))), len(changed) - 1)
        match rng.randrange(7):
            case 0:
                changed[place] ^= 1 << rng.randrange(8)
            case 1:
                changed[place] = rng.randrange(256)
            case 2:
                number = rng.choice((0, 1, 2, 8, 9, 77, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 64) - 1))
                width = rng.choice((4, 8))
                changed[place : place + width] = (number % (1 << (8 * width))).to_bytes(width, "little")
            case 3:
                del changed[place:]
            case 4:
                del changed[place : place + rng.choice((1, 4, 8, 64))]
            case 5:
                changed[place:place] = rng.choice(BYTE_STRINGS) * rng.choice((1, 1, 8, 1000))
            case _:
                start = rng.randrange(len(changed))
                piece = changed[start : start + rng.choice((4, 16, 64, 1024))]
                changed[place : place + rng.choice((0, len(piece)))] = piece
    return bytes(changed)


# JSON


def change_json(rng: random.Random, data: bytes) -> bytes:
    """One to three values anywhere in it replaced, left out, doubled or moved; sometimes bytes of the text."""
    if rng.random() < 0.1:
        return change_bytes(rng, data)
    root = json.loads(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        root = change_value(rng, root)
    return to_json(rng, root)


def to_json(rng: random.Random, value: Any) -> bytes:
    """The text of a value; rarely with a name that appears twice."""
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.02 and text.startswith("{") and value:
        name = rng.choice(list(value))
        text = text[:-1] + f", {json.dumps(name)}: {json.dumps(value[name])}}}"
    return text.encode(errors="surrogatepass")


def change_value(rng: random.Random, root: Any) -> Any:
    """The value with one change at a place in it; few are deep in lists."""
    path: list[tuple[Any, Any]] = []
    node = root
    while isinstance(node, dict | list) and node and (not path or rng.random() < 0.85):
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        path.append((node, key))
        node = node[key]
    if not path:
        return _other(rng, root)
    parent, key = path[-1]
    match rng.randrange(10):
        case 0:
            del parent[key]
        case 1 if isinstance(parent, dict):
            parent[rng.choice(TEXTS)] = parent.pop(key)
        case 1 | 2 if isinstance(parent, list):
            parent.insert(rng.randrange(len(parent) + 1), parent[key])
        case 3:
            _swap(rng, parent, key)
        case _:
            parent[key] = _other(rng, node)
    return root


def _swap(rng: random.Random, parent: Any, key: Any) -> None:
    other = rng.choice(list(parent)) if isinstance(parent, dict) else rng.randrange(len(parent))
    parent[key], parent[other] = parent[other], parent[key]


def _other(rng: random.Random, value: Any) -> Any:
    """Something else in the place of a value, of its type more often than not."""
    kind = rng.random()
    if kind < 0.55:
        if isinstance(value, bool):
            return not value
        if isinstance(value, int | float):
            near = (value + 1, value - 1, 2 * value, -value, float(min(value, 1e300)) + 0.5)
            return rng.choice(NUMBERS if rng.random() < 0.75 else near)
        if isinstance(value, str):
            return rng.choice((*TEXTS, value[:-1], value + "x", value * 2, value.upper()))
        if isinstance(value, list):
            return rng.choice(([], value * 2, value[:-1], [value], value[::-1], value[:1] * 500))
    if kind < 0.9:
        return rng.choice((rng.choice(NUMBERS), rng.choice(TEXTS)))
    return rng.choice(
        (None, True, False, [], {}, [[]], [None], {"": None}, [1, 2, 3], _nested(rng.choice((5, 200, 5000))))
    )


def _nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(min(depth, 600)):  # deeper ones cannot be written by json.dumps
        value = [value]
    return value


# safetensors


def change_safetensors(rng: random.Random, data: bytes) -> bytes:
    """Changes of the header's JSON, of its length, of bytes anywhere, and numbers of weights at their limits."""
    length = int.from_bytes(data[:8], "little")
    header, body = data[8 : 8 + length], data[8 + length :]
    match rng.randrange(10):
        case 0 | 1:
            return change_bytes(rng, data)
        case 2:
            extremes = (0, 1, length - 1, length + 1, len(data), 100 << 20, 1 << 32, 1 << 63, (1 << 64) - 1)
            return rng.choice(extremes).to_bytes(8, "little") + header + body
        case 3:
            return data[:8] + header + change_bytes(rng, body)
        case 4:
            return data[:8] + header + _with_extreme_numbers(rng, body)
        case 5 | 6 | 7:
            entries = json.loads(header)
            name = rng.choice([name for name in entries if name != "__metadata__"])
            entries[name] = _change_entry(rng, entries, name)
            header = to_json(rng, entries)
        case _:
            header = change_json(rng, header)
    return len(header).to_bytes(8, "little") + header + body


def _change_entry(rng: random.Random, entries: dict[str, Any], name: str) -> Any:
    """The entry of one tensor with a field that no longer fits the others, or all that do but of another tensor."""
    entry = dict(entries[name])
    field = rng.choice(("shape", "shape", "dtype", "data_offsets", "data_offsets", "all"))
    if field == "all":
        return entries[rng.choice([other for other in entries if other != "__metadata__"])]
    if field == "dtype":
        entry["dtype"] = rng.choice(("F64", "F32", "F16", "BF16", "I32", "U8", "F8_E4M3", "F4", "", None, 7))
    else:
        numbers = list(entry[field])
        place = rng.randrange(len(numbers))
        match rng.randrange(5):
            case 0:
                numbers[place] = rng.choice(NUMBERS)
            case 1:
                numbers.reverse()
            case 2:
                numbers.insert(place, rng.choice((0, 1, 1 << 40)))
            case 3:
                del numbers[place]
            case _:
                numbers = [number * rng.choice((1, 2, 1 << 33)) for number in numbers]
        entry[field] = numbers
    return entry


def _with_extreme_numbers(rng: random.Random, body: bytes) -> bytes:
    """Some float32 numbers of the data at their limits."""
    changed = bytearray(body)
    for _ in range(rng.choice((1, 8, 500))):
        place = rng.randrange(max(len(changed) // 4, 1)) * 4
        changed[place : place + 4] = struct.pack(
            "<f", rng.choice((float("nan"), float("inf"), -float("inf"), 3.4e38, -3.4e38, 1e-45, 1e30, 0.0))
        )
    return bytes(changed)
