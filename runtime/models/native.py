"""A decoder of the Llama family with weights in the CPU library's tiles; loading it from a GGUF file needs no torch."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...kernels.native import library as native
from ...kernels.native.library import Library
from ...kernels.native.threads import Threads
from ...kernels.native.weights import BLOCK, GROUP, TiledWeight, mix, tile_blocks
from ..checkpoints.config import ModelConfig
from ..checkpoints.gguf_tensors import GGUFTensors
from ..checkpoints.weights import Progress, check_shapes, list_parameters
from ..protocol.errors import ModelError
from .rope_frequencies import rope_table, rope_table_bytes

if TYPE_CHECKING:
    from ..checkpoints.checkpoint import Checkpoint

Floats = npt.NDArray[np.float32]

NATIVE_KINDS = ("int8", "int4", "w8a8")
"""Formats that layers' weights can be rounded to: with a scale for 32 inputs, or (w8a8) in the Hadamard form."""

_MAX_HEAD_DIM = 256
_MATRICES = (
    ("query", "self_attn.q_proj"),
    ("key", "self_attn.k_proj"),
    ("value", "self_attn.v_proj"),
    ("out", "self_attn.o_proj"),
    ("gate", "mlp.gate_proj"),
    ("up", "mlp.up_proj"),
    ("down", "mlp.down_proj"),
)
_NORMS = (
    ("input_norm", "input_layernorm"),
    ("post_norm", "post_attention_layernorm"),
    ("query_norm", "self_attn.q_norm"),
    ("key_norm", "self_attn.k_norm"),
)


@dataclass(frozen=True)
class NativeTarget:
    """Options for loading a decoder, and the library and threads that run it.

    quantization    one of NATIVE_KINDS, to which the layers' weights are rounded; None: they stay as they are stored
    max_position    most tokens of a context; None: the model's own limit
    has_rests       activations far above the others of their token get 16 bits
    claim           called with the bytes of the decoder before any are allocated; raises ModelError for too many
    """

    library: Library
    threads: Threads
    quantization: str | None = None
    max_position: int | None = None
    has_rests: bool = False
    claim: Callable[[int], None] = lambda num_bytes: None

    def num_positions(self, config: ModelConfig) -> int:
        """Returns the number of positions for which a decoder of `config` has rotary angles."""
        return min(config.max_position, self.max_position or config.max_position)


@dataclass(frozen=True)
class NativeDecoder:
    """A model loaded for the CPU library.

    Activations are float32, rounded to 8 bits for products, or with `has_rests` to 16 where they are far above the
    others of their token; keys and values are stored as integers.

    struct    the model for the library
    kept      memory that `struct` points to
    """

    library: Library
    threads: Threads
    config: ModelConfig
    struct: native.Model
    kept: list[object] = field(repr=False)

    @property
    def num_layers(self) -> int:
        return self.config.num_layers

    @property
    def num_heads(self) -> int:
        return self.config.num_heads

    @property
    def num_kv_heads(self) -> int:
        return self.config.num_kv_heads

    @property
    def head_dim(self) -> int:
        return self.config.head_dim

    def pass_bytes(self, num_tokens: int, num_logits: int) -> int:
        """Returns the bytes that a pass needs beside weights and cache, its logits included."""
        workspace = self.library.workspace_bytes(
            ctypes.addressof(self.struct), self.threads.num, num_tokens, num_logits
        )
        return int(workspace) + num_logits * self.config.vocab_size * 4

    def kv_bytes(self, num_tokens: int, kv_bits: int) -> tuple[int, int]:
        """Returns the bytes of tokens' keys in all layers (as many again for values), and of the scales of both."""
        heads = num_tokens * self.num_layers * self.num_kv_heads
        return heads * self.head_dim * kv_bits // 8, heads * 2 * 4

    @property
    def num_parameters(self) -> int:
        return sum(math.prod(parameter.shape) for parameter in list_parameters(self.config))

    @property
    def layer_bits(self) -> float:
        """Average bits of a layer's weight, scales included."""
        layers = (native.Layer * self.num_layers).from_address(self.struct.layers)
        weights = [getattr(layer, name) for layer in layers for name, _ in _MATRICES]
        num_bytes = sum(self.library.weight_bytes(weight.format, weight.rows, weight.columns) for weight in weights)
        return 8.0 * num_bytes / sum(int(weight.rows * weight.columns) for weight in weights)


def fits(config: ModelConfig, quantization: str | None) -> bool:
    """True if the library can compute a model of these sizes with its layers' weights rounded to `quantization`."""
    widths = (config.hidden_size, config.intermediate_size, config.head_dim)
    together = BLOCK if quantization == "w8a8" else GROUP
    return all(width % together == 0 for width in widths) and config.head_dim <= _MAX_HEAD_DIM


def decoder_bytes(config: ModelConfig, checkpoint: Checkpoint | GGUFTensors, target: NativeTarget) -> int:
    """Returns a lower bound of the bytes of weights and tables in a decoder that `load_native` makes."""
    total = rope_table_bytes(config.head_dim, target.num_positions(config))
    for parameter in list_parameters(config):
        is_table = parameter.name == "embedding" or (parameter.name == "head" and target.quantization != "w8a8")
        for name, shape in parameter.sources:
            if len(shape) < 2:
                total += 4 * math.prod(shape)
                continue
            form = _form(checkpoint, name, target, is_table)
            total += int(target.library.weight_bytes(form, shape[0], shape[1]))
    return total


def _form(checkpoint: Checkpoint | GGUFTensors, name: str, target: NativeTarget, is_table: bool) -> int:
    """Returns the format that a matrix is packed in, or the smallest one (BITS4) where only reading it will tell."""
    kind = None if is_table else target.quantization
    if kind is not None:
        return {"int8": native.BITS8, "int4": native.BITS4, "w8a8": native.BITS8 | native.HADAMARD}[kind]
    if isinstance(checkpoint, GGUFTensors) and checkpoint.is_quantised(name):
        return max(target.library.format_of(checkpoint.type_id(name)), native.BITS4)
    return native.BITS8 if is_table else native.BITS4


def load_native(
    config: ModelConfig, checkpoint: Checkpoint | GGUFTensors, target: NativeTarget, progress: Progress | None = None
) -> NativeDecoder | None:
    """Loads a decoder with quantised layers: as the checkpoint stores them, without loss, or rounded by `target`.

    Embeddings and the output head stay as stored if they are quantised, and get 8 bits if they are floats; with w8a8
    the head is rounded as the layers are. `progress` is called with ("load", done, total), in tensors.

    Returns None if a layer is not quantised, or if the library has no format for a matrix or the model's sizes.

    Raises:
        ModelError: a tensor is missing or has a wrong shape (weights.check_shapes), the decoder needs too much memory
            (NativeTarget.claim), or a weight or one of its scales is not finite.
    """
    if not fits(config, target.quantization):
        return None
    check_shapes(config, list_parameters(config), checkpoint)
    target.claim(decoder_bytes(config, checkpoint, target))
    loader = _Loader(checkpoint, target, progress, 2 + len(_MATRICES) * config.num_layers)
    layers = (native.Layer * config.num_layers)()
    for index, layer in enumerate(layers):
        prefix = f"model.layers.{index}."
        layer.rotates, layer.window = config.rope_layers[index], config.windows[index] or 0
        for name, source in _NORMS:
            setattr(layer, name, loader.norm(f"{prefix}{source}.weight"))
        for name, source in _MATRICES:
            weight = loader.weight(f"{prefix}{source}.weight")
            if weight is None:
                return None
            setattr(layer, name, weight)
    embedding = loader.weight("model.embed_tokens.weight", is_table=True)
    mixes = target.quantization == "w8a8"  # the head too: it is a tenth of the work or more
    name = "model.embed_tokens.weight" if config.tie_embeddings else "lm_head.weight"
    head = embedding if config.tie_embeddings and not mixes else loader.weight(name, is_table=not mixes)
    if embedding is None or head is None:
        return None
    num_positions = target.num_positions(config)
    cos, sin = rope_table(config.rope, config.head_dim, num_positions)
    struct = native.Model(
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        vocab=config.vocab_size,
        num_positions=num_positions,
        has_rests=target.has_rests,
        norm_eps=config.norm_eps,
        scale=config.head_dim**-0.5,
        cos=loader.keep(cos),
        sin=loader.keep(sin),
        norm=loader.norm("model.norm.weight"),
        embedding=embedding,
        head=head,
        layers=ctypes.addressof(layers),
    )
    return NativeDecoder(target.library, target.threads, config, struct, [layers, *loader.kept])


class _Loader:
    """Loads tensors one by one, and keeps the memory that the library's structures point to."""

    def __init__(
        self, checkpoint: Checkpoint | GGUFTensors, target: NativeTarget, progress: Progress | None, total: int
    ) -> None:
        self.kept: list[object] = []
        self._checkpoint = checkpoint
        self._target = target
        self._progress = progress
        self._total = total
        self._done = 0

    def keep(self, numbers: Floats) -> int:
        """Keeps an array in memory; returns its address."""
        numbers = np.ascontiguousarray(numbers)
        self.kept.append(numbers)
        return int(numbers.ctypes.data)

    def norm(self, name: str) -> int | None:
        return self.keep(self._read_finite(name)) if name in self._checkpoint.shapes else None

    def weight(self, name: str, *, is_table: bool = False) -> native.Weight | None:
        """Loads a matrix and its bias; returns None if the library has no format for it.

        is_table    of embeddings, or an output head that is not rounded: stays as stored, and gets 8 bits if it is
                    of floats
        """
        bias_name = name.removesuffix("weight") + "bias"
        bias = self._read_finite(bias_name) if bias_name in self._checkpoint.shapes else None
        tiled = self._tile(name, bias, is_table)
        if tiled is None:
            return None
        if not tiled.finite:
            raise _not_finite(name)
        self.kept.append(tiled)
        self._done += 1
        if self._progress is not None:
            self._progress("load", self._done, self._total)
        return tiled.struct

    def _read_finite(self, name: str) -> Floats:
        numbers = self._read(name)
        if not np.isfinite(numbers).all():
            raise _not_finite(name)
        return numbers

    def _read(self, name: str) -> Floats:
        if isinstance(self._checkpoint, GGUFTensors):
            return self._checkpoint.read_numbers(name)
        return self._checkpoint.read(name).float().numpy()

    def _tile(self, name: str, bias: Floats | None, is_table: bool) -> TiledWeight | None:
        library, threads = self._target.library, self._target.threads
        kind = None if is_table else self._target.quantization
        if kind != "w8a8":
            return self._tile_in_groups(name, kind, bias, is_table)
        stored = self._tile_in_groups(name, None, None, is_table)
        return mix(library, threads, self._read(name) if stored is None else stored, bias=bias)

    def _tile_in_groups(self, name: str, kind: str | None, bias: Floats | None, is_table: bool) -> TiledWeight | None:
        checkpoint, library, threads = self._checkpoint, self._target.library, self._target.threads
        if kind is None and isinstance(checkpoint, GGUFTensors) and checkpoint.is_quantised(name):
            blocks, type_id, order = checkpoint.read_blocks(name)
            columns = checkpoint.shapes[name][1]
            return tile_blocks(library, threads, blocks, type_id, columns, order=order, bias=bias)
        from ...kernels.native.packed import tile_packed  # noqa: PLC0415  pulls torch
        from .quantised_linear import read_packed  # noqa: PLC0415  pulls torch

        packed = read_packed(checkpoint, name, kind, is_table)
        return None if packed is None else tile_packed(library, threads, packed, bias)


def _not_finite(name: str) -> ModelError:
    return ModelError(f"tensor {name} has numbers that are not finite")
