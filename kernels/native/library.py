"""Bindings of the compiled CPU library: loaded once from beside this file, with typed functions and structures."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

ALIGNMENT = 64
"""Bytes: of weights and workspaces."""

BITS4, BITS8, MINIMUM, WIDE, HADAMARD = 0, 1, 2, 4, 128
"""Parts of a weight's format; source/linear/tiles.h says what they mean."""

SCORE, TARGET = 1, 2
"""Parts of what `Draw.asks` beside a token: log-probabilities, and nothing but these."""

MAX_LIKELIEST = 20
"""Tokens of a row that log-probabilities can be asked for."""


STAGES = ("plan", "norm", "qkv", "store", "attention", "out", "expand", "down", "head")
"""Parts of a forward pass that `Batch.seconds`, if it is not null, counts."""


class Weight(ctypes.Structure):
    """bough_weight: `rows` outputs and `columns` inputs in tiles."""

    _fields_ = (
        ("format", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("columns", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("tiles", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    )


class Layer(ctypes.Structure):
    """bough_layer."""

    _fields_ = (
        ("input_norm", ctypes.c_void_p),
        ("post_norm", ctypes.c_void_p),
        ("query_norm", ctypes.c_void_p),
        ("key_norm", ctypes.c_void_p),
        ("query", Weight),
        ("key", Weight),
        ("value", Weight),
        ("out", Weight),
        ("gate", Weight),
        ("up", Weight),
        ("down", Weight),
        ("rotates", ctypes.c_int32),
        ("window", ctypes.c_int32),
    )


class Model(ctypes.Structure):
    """bough_model."""

    _fields_ = (
        ("num_layers", ctypes.c_int32),
        ("num_heads", ctypes.c_int32),
        ("num_kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("hidden", ctypes.c_int32),
        ("intermediate", ctypes.c_int32),
        ("vocab", ctypes.c_int32),
        ("num_positions", ctypes.c_int32),
        ("has_rests", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("norm_eps", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("norm", ctypes.c_void_p),
        ("embedding", Weight),
        ("head", Weight),
        ("layers", ctypes.c_void_p),
    )


class Cache(ctypes.Structure):
    """bough_cache."""

    _fields_ = (
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("num_slots", ctypes.c_int64),
        ("page_size", ctypes.c_int32),
        ("bits", ctypes.c_int32),
    )


class Batch(ctypes.Structure):
    """bough_batch."""

    _fields_ = (
        ("num_tokens", ctypes.c_int32),
        ("num_sequences", ctypes.c_int32),
        ("num_logits", ctypes.c_int32),
        ("table_width", ctypes.c_int32),
        ("tokens", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("write_slot", ctypes.c_void_p),
        ("logit_rows", ctypes.c_void_p),
        ("query_start", ctypes.c_void_p),
        ("context_len", ctypes.c_void_p),
        ("page_table", ctypes.c_void_p),
        ("seconds", ctypes.c_void_p),
        ("faults", ctypes.c_void_p),
    )


class Draw(ctypes.Structure):
    """bough_draw."""

    _fields_ = (
        ("seed", ctypes.c_uint64),
        ("position", ctypes.c_int64),
        ("temperature", ctypes.c_double),
        ("top_p", ctypes.c_float),
        ("min_p", ctypes.c_float),
        ("top_k", ctypes.c_int32),
        ("asks", ctypes.c_int32),
        ("num_likeliest", ctypes.c_int32),
        ("mask", ctypes.c_int32),
        ("first_repeated", ctypes.c_int32),
        ("first_added", ctypes.c_int32),
        ("last_edit", ctypes.c_int32),
        ("token", ctypes.c_int32),
        ("raw", ctypes.c_float),
        ("raw_top", ctypes.c_float),
        ("final", ctypes.c_float),
        ("final_top", ctypes.c_float),
        ("raw_sum", ctypes.c_double),
        ("final_sum", ctypes.c_double),
    )


class Edit(ctypes.Structure):
    """bough_edit."""

    _fields_ = (("token", ctypes.c_int32), ("change", ctypes.c_float))


class Sampling(ctypes.Structure):
    """bough_sampling."""

    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("masks", ctypes.c_void_p),
        ("edits", ctypes.c_void_p),
        ("likeliest", ctypes.c_void_p),
        ("likeliest_logits", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("num_rows", ctypes.c_int32),
        ("vocab", ctypes.c_int32),
    )


@dataclass(frozen=True)
class Library:
    """The library's functions, which release the interpreter's lock while they run; arguments are addresses.

    lanes           outputs that lie together in a weight's tiles; depends on the processor
    instructions    the processor's that it computes with, as "AVX2"
    """

    lanes: int
    instructions: str
    pool_create: Callable[[int], int]
    pool_destroy: Callable[[int], None]
    format_of: Callable[[int], int]
    weight_bytes: Callable[[int, int, int], int]
    pack_blocks: Callable[..., int]
    pack_codes: Callable[..., int]
    mix: Callable[..., int]
    read_rows: Callable[..., None]
    multiply: Callable[..., None]
    sample: Callable[[int | None, int], None]
    sampling_bytes: Callable[[int, int], int]
    workspace_bytes: Callable[..., int]
    forward: Callable[..., None]


_POINTER, _INT = ctypes.c_void_p, ctypes.c_int32
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "pool_create": (_POINTER, (_INT,)),
    "pool_destroy": (None, (_POINTER,)),
    "format_of": (_INT, (_INT,)),
    "weight_bytes": (ctypes.c_int64, (_INT, _INT, _INT)),
    "pack_blocks": (_INT, (_POINTER, _INT, _POINTER, _POINTER, _INT, _INT, _POINTER)),
    "pack_codes": (_INT, (_POINTER, _INT, _POINTER, _POINTER, _POINTER, _INT, _INT, _POINTER)),
    "mix": (_INT, (_POINTER, _POINTER, _POINTER, _INT, _INT, _POINTER)),
    "read_rows": (None, (_POINTER, _POINTER, _INT, _POINTER)),
    "multiply": (None, (_POINTER, _POINTER, _POINTER, _INT, _POINTER)),
    "sample": (None, (_POINTER, _POINTER)),
    "sampling_bytes": (ctypes.c_int64, (_INT, _INT)),
    "workspace_bytes": (ctypes.c_int64, (_POINTER, _INT, _INT, _INT)),
    "forward": (None, (_POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER)),
}


@functools.cache
def load_library() -> Library | None:
    """The library, or None where it was not built (no C compiler) or cannot run (x86 without AVX2).

    BOUGH_CPU_LIBRARY in the environment names another build of it, as with sanitizers.

    Raises:
        RuntimeError: it was built from other sources than these.
        OSError: BOUGH_CPU_LIBRARY is no library.
    """
    named = os.environ.get("BOUGH_CPU_LIBRARY")
    if named:
        return _bind(ctypes.CDLL(named))
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_cpu{suffix}")
        if path.is_file():
            return _bind(ctypes.CDLL(str(path)))
    return None


def _bind(loaded: ctypes.CDLL) -> Library | None:
    ours = [ctypes.sizeof(structure) for structure in (Weight, Layer, Model, Cache, Batch, Draw, Edit, Sampling)]
    theirs = (ctypes.c_int32 * len(ours))()
    if hasattr(loaded, "bough_sizes"):
        loaded.bough_sizes(theirs)
    if list(theirs) != ours or not hasattr(loaded, "bough_instructions"):
        raise RuntimeError("bough's CPU library was built from older sources: reinstall bough, or run make dev")
    loaded.bough_instructions.restype = ctypes.c_char_p
    instructions = loaded.bough_instructions()
    if instructions is None:
        return None
    functions: dict[str, Any] = {}
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, f"bough_{name}")
        function.restype, function.argtypes = result, arguments
        functions[name] = function
    return Library(loaded.bough_lanes(), instructions.decode(), **functions)
