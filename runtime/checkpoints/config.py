"""Configuration of a decoder: read from a Hugging Face config.json or GGUF metadata, with every number checked."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..protocol.errors import ModelError, in_file
from .gguf_file import GGUFFile

NATIVE_ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "smollm3")
_MAX_DIMENSION = 1 << 24
_MAX_LAYERS = 1024
_MAX_SETTINGS = 1024  # of a GGUF file
_MAX_CONTEXT = 1 << 24
_MAX_ROPE = 1e9
_MAX_THETA = 1e15
_THETA_DEFAULTS = {"smollm3": 2_000_000.0}


class UnsupportedModelError(ModelError):
    """The model is well formed, but needs a feature that the native decoder does not compute."""


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding. `kind` is the scaling of the frequencies: default, linear, llama3, yarn or factors.

    linear: all divided by `factor`. llama3, yarn: by `factor` where the wavelength is long, blended between.
    factors: each divided by its own entry of `frequency_factors` (head_dim / 2 numbers, as GGUF stores them).
    """

    theta: float = 10_000.0
    kind: str = "default"
    factor: float = 1.0
    original_max_position: int = 0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True
    frequency_factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("theta", self.theta, 1.0, _MAX_THETA),
            ("factor", self.factor, 1 / _MAX_ROPE, _MAX_ROPE),
            ("beta_fast", self.beta_fast, 1 / _MAX_ROPE, _MAX_ROPE),
            ("beta_slow", self.beta_slow, 1 / _MAX_ROPE, _MAX_ROPE),
            ("attention_factor", 1.0 if self.attention_factor is None else self.attention_factor, 0.0, _MAX_ROPE),
            *(("frequency factor", factor, 1 / _MAX_ROPE, 1e30) for factor in self.frequency_factors),
        ):
            if not least <= value <= most:
                raise ModelError(f"rope {name} must be from {least:g} to {most:g}, got {value:g}")
        if self.kind == "yarn" and self.theta == 1.0:
            raise ModelError("rope theta must be above 1 with yarn")
        if self.kind == "llama3" and not self.low_frequency_factor < self.high_frequency_factor <= _MAX_ROPE:
            low, high = self.low_frequency_factor, self.high_frequency_factor
            raise ModelError(f"rope low_freq_factor must be below high_freq_factor, got {low:g} and {high:g}")


@dataclass(frozen=True)
class ModelShape:
    """Facts about a model that the engine needs. `max_position` is the longest context, in tokens."""

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_heads", "num_kv_heads", "head_dim"):
            _require_range(name, getattr(self, name), _MAX_DIMENSION)
        _require_range("num_layers", self.num_layers, _MAX_LAYERS)
        _require_range("max_position", self.max_position, _MAX_CONTEXT)
        if self.num_heads % self.num_kv_heads:
            raise ModelError(f"num_heads ({self.num_heads}) must be a multiple of num_kv_heads ({self.num_kv_heads})")


@dataclass(frozen=True)
class ModelConfig(ModelShape):
    """Shape of a native decoder. The last two have one entry a layer."""

    intermediate_size: int
    norm_eps: float
    rope: RopeConfig
    tie_embeddings: bool
    qkv_bias: bool
    out_bias: bool
    qk_norm: bool
    rope_layers: tuple[bool, ...]  # False: the layer's queries and keys are not rotated
    windows: tuple[int | None, ...]  # a query sees this many newest keys, itself included; None: all

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_range("intermediate_size", self.intermediate_size, _MAX_DIMENSION)
        if self.head_dim % 2:
            raise ModelError(f"head_dim must be even for rotary positions, got {self.head_dim}")
        if not 0.0 < self.norm_eps < 1.0:
            raise ModelError(f"norm_eps must be between 0 and 1, got {self.norm_eps}")
        for name in ("rope_layers", "windows"):
            if len(getattr(self, name)) != self.num_layers:
                raise ModelError(f"{name} must have one entry per layer, got {len(getattr(self, name))}")
        for window in self.windows:
            if window is not None:
                _require_range("sliding window", window, 1 << 31)


def read_config(source: Mapping[str, Any] | GGUFFile) -> ModelConfig:
    """Reads the config of a natively supported model.

    Raises:
        UnsupportedModelError: another architecture, or a feature of it that the native decoder does not compute.
        ModelError: a field is missing or impossible.
    """
    if isinstance(source, GGUFFile):
        with in_file(source.path.name):
            return _read_gguf(source)
    with in_file("config.json"):
        return _read_hugging_face(source)


# -- Hugging Face ------------------------------------------------------------------------------------------------


def _read_hugging_face(raw: Mapping[str, Any]) -> ModelConfig:
    architecture = raw.get("model_type")
    if architecture not in NATIVE_ARCHITECTURES:
        raise UnsupportedModelError(f"model_type {architecture!r} has no native decoder")
    _require_plain(raw)
    num_layers = _integer(raw, "num_hidden_layers", _MAX_LAYERS)
    num_heads = _integer(raw, "num_attention_heads")
    hidden_size = _integer(raw, "hidden_size")
    bias = bool(raw.get("attention_bias", False))
    return ModelConfig(
        architecture=str(architecture),
        vocab_size=_integer(raw, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_integer(raw, "intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_integer(raw, "num_key_value_heads", default=num_heads),
        head_dim=_integer(raw, "head_dim", default=128 if architecture == "qwen3" else hidden_size // num_heads),
        max_position=_integer(raw, "max_position_embeddings", _MAX_CONTEXT, default=2048),
        norm_eps=_number(raw, "rms_norm_eps", 1e-6),
        rope=_read_rope(raw, str(architecture)),
        tie_embeddings=bool(raw.get("tie_word_embeddings", architecture == "smollm3")),
        qkv_bias=True if architecture == "qwen2" else bias,
        out_bias=False if architecture == "qwen2" else bias,
        qk_norm=architecture == "qwen3",
        rope_layers=_read_rope_layers(raw, str(architecture), num_layers),
        windows=_read_windows(raw, str(architecture), num_layers),
    )


def _require_plain(raw: Mapping[str, Any]) -> None:
    """Refuses settings that would change the results and are not supported."""
    if raw.get("hidden_act", "silu") not in ("silu", "swish"):
        raise UnsupportedModelError(f"hidden_act {raw['hidden_act']!r} is not supported natively (silu is)")
    if raw.get("mlp_bias", False):
        raise UnsupportedModelError("mlp_bias is not supported natively")


def _read_rope(raw: Mapping[str, Any], architecture: str) -> RopeConfig:
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise ModelError(f"rope_scaling must be an object, got {scaling!r}")
    default_theta = _THETA_DEFAULTS.get(architecture, 10_000.0)
    theta = _number(scaling, "rope_theta", _number(raw, "rope_theta", default_theta))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if _number(scaling, "partial_rotary_factor", _number(raw, "partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedModelError("partial_rotary_factor is not supported natively")
    if kind == "default":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, "linear", _number(scaling, "factor"))
    original = _integer(scaling, "original_max_position_embeddings", default=raw.get("max_position_embeddings"))
    if kind == "llama3":
        return RopeConfig(
            theta,
            "llama3",
            _number(scaling, "factor"),
            original,
            low_frequency_factor=_number(scaling, "low_freq_factor"),
            high_frequency_factor=_number(scaling, "high_freq_factor"),
        )
    if kind == "yarn" and not scaling.get("mscale") and not scaling.get("mscale_all_dim"):
        return RopeConfig(
            theta,
            "yarn",
            _number(scaling, "factor"),
            original,
            beta_fast=_number(scaling, "beta_fast", 32.0),
            beta_slow=_number(scaling, "beta_slow", 1.0),
            attention_factor=_number(scaling, "attention_factor") if scaling.get("attention_factor") else None,
            truncate=bool(scaling.get("truncate", True)),
        )
    raise UnsupportedModelError(f"rope_type {kind!r} is not supported natively (default, linear, llama3, yarn are)")


def _read_rope_layers(raw: Mapping[str, Any], architecture: str, num_layers: int) -> tuple[bool, ...]:
    if architecture != "smollm3":
        return (True,) * num_layers
    listed = raw.get("no_rope_layers")  # despite the name, 1 means that the layer rotates
    if isinstance(listed, list):
        return tuple(bool(entry) for entry in listed)
    interval = _integer(raw, "no_rope_layer_interval", default=4)
    return tuple((layer + 1) % interval != 0 for layer in range(num_layers))


def _read_windows(raw: Mapping[str, Any], architecture: str, num_layers: int) -> tuple[int | None, ...]:
    """Returns each layer's window: Mistral's applies to all layers; Qwen's and SmolLM3's to those named, if enabled."""
    window = _integer(raw, "sliding_window", 1 << 31) if raw.get("sliding_window") is not None else None
    if architecture == "mistral":
        return (window,) * num_layers
    if architecture == "llama" or window is None or not raw.get("use_sliding_window", False):
        return (None,) * num_layers
    kinds = raw.get("layer_types")
    if not isinstance(kinds, list):
        if architecture == "smollm3":
            rotated = _read_rope_layers(raw, architecture, num_layers)
            return tuple(None if rotates else window for rotates in rotated)
        first = _integer(raw, "max_window_layers", default=28)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    unknown = set(map(str, kinds)) - {"full_attention", "sliding_attention"}
    if unknown:
        raise UnsupportedModelError(f"layer_types {sorted(unknown)} are not supported natively")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


# -- GGUF --------------------------------------------------------------------------------------------------------


def _read_gguf(file: GGUFFile) -> ModelConfig:
    architecture = file.metadata("general.architecture")
    if architecture not in NATIVE_ARCHITECTURES:
        raise UnsupportedModelError(f"general.architecture {architecture!r} has no native decoder")
    prefix = f"{architecture}."
    keys = [key for key in file.keys if key.startswith(prefix)]
    if len(keys) > _MAX_SETTINGS:
        raise ModelError(f"{file.path.name}: {len(keys)} keys of {architecture}, at most {_MAX_SETTINGS} are accepted")
    raw = {key.removeprefix(prefix): file.metadata(key) for key in keys}
    if raw.get("expert_count"):
        raise UnsupportedModelError("expert_count: mixtures of experts are not supported natively")
    num_layers = _integer(raw, "block_count", _MAX_LAYERS)
    num_heads = _integer(raw, "attention.head_count")
    hidden_size = _integer(raw, "embedding_length")
    head_dim = _integer(raw, "attention.key_length", default=hidden_size // num_heads)
    if _integer(raw, "attention.value_length", default=head_dim) != head_dim:
        raise UnsupportedModelError("keys and values of different lengths are not supported natively")
    if _integer(raw, "rope.dimension_count", default=head_dim) != head_dim:
        raise UnsupportedModelError("rotating only part of the head is not supported natively")
    window = _integer(raw, "attention.sliding_window", 1 << 31) if raw.get("attention.sliding_window") else None
    tensors = file.tensors()
    return ModelConfig(
        architecture=str(architecture),
        vocab_size=_gguf_vocab_size(file),
        hidden_size=hidden_size,
        intermediate_size=_integer(raw, "feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_integer(raw, "attention.head_count_kv", default=num_heads),
        head_dim=head_dim,
        max_position=_integer(raw, "context_length", _MAX_CONTEXT),
        norm_eps=_number(raw, "attention.layer_norm_rms_epsilon"),
        rope=_gguf_rope(file, raw, head_dim),
        tie_embeddings="output.weight" not in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        out_bias="blk.0.attn_output.bias" in tensors,
        qk_norm=architecture == "qwen3",
        # The format has no field for it: SmolLM3 is defined by leaving out every fourth layer.
        rope_layers=tuple(architecture != "smollm3" or (layer + 1) % 4 != 0 for layer in range(num_layers)),
        windows=(window,) * num_layers,
    )


def _gguf_vocab_size(file: GGUFFile) -> int:
    embedding = file.tensors().get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError(f"{file.path.name}: the matrix token_embd.weight is missing")
    if file.num_tokens > embedding.shape[0]:
        raise ModelError(f"{file.path.name}: {file.num_tokens} tokens but {embedding.shape[0]} embeddings")
    return embedding.shape[0]


def _gguf_rope(file: GGUFFile, raw: Mapping[str, Any], head_dim: int) -> RopeConfig:
    theta = _number(raw, "rope.freq_base", 10_000.0)
    kind = raw.get("rope.scaling.type", "none")
    factors = file.tensors().get("rope_freqs.weight")
    if factors is not None:
        if factors.shape != (head_dim // 2,) or factors.format.name != "F32":
            raise ModelError(f"{file.path.name}: rope_freqs.weight must hold {head_dim // 2} float32 numbers")
        numbers = np.frombuffer(file.blocks(factors).tobytes(), "<f4").tolist()
        if not all(0.0 < number < float("inf") for number in numbers):
            raise ModelError(f"{file.path.name}: rope_freqs.weight must hold positive numbers")
        return RopeConfig(theta, "factors", frequency_factors=tuple(numbers))
    if kind == "none":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, "linear", _number(raw, "rope.scaling.factor"))
    if kind == "yarn":
        original = _integer(raw, "rope.scaling.original_context_length", 1 << 31)
        return RopeConfig(theta, "yarn", _number(raw, "rope.scaling.factor"), original)
    raise UnsupportedModelError(f"rope.scaling.type {kind!r} is not supported natively (none, linear, yarn are)")


# -- fields ------------------------------------------------------------------------------------------------------


def _require_range(name: str, value: int, limit: int) -> None:
    if not 1 <= value <= limit:
        raise ModelError(f"{name} must be from 1 to {limit}, got {value}")


def _integer(raw: Mapping[str, Any], key: str, limit: int = _MAX_DIMENSION, *, default: int | None = None) -> int:
    value = raw.get(key)
    if value is None:
        if default is None:
            raise ModelError(f"the model's config has no {key}")
        value = default
    if not isinstance(value, int) or isinstance(value, bool):
        raise ModelError(f"{key} must be an integer, got {value!r}")
    _require_range(key, value, limit)
    return value


def _number(raw: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = raw.get(key)
    if value is None:
        if default is None:
            raise ModelError(f"the model's config has no {key}")
        value = default
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.0 <= value <= sys.float_info.max:
        raise ModelError(f"{key} must be a number of at least 0, got {value!r}")
    return float(value)
