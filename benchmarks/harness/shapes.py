"""Shapes of well-known models, as their config.json says them; no weights, and no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...runtime.checkpoints.config import ModelConfig, read_config

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
}

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "qwen3-8b": {
        **_QWEN3,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    "llama-3.1-8b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128_256,
        "head_dim": 128,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "rope_scaling": _LLAMA3_ROPE,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    "qwen3-0.6b": {
        **_QWEN3,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    "tiny": {
        **_QWEN3,
        "vocab_size": 640,
        "head_dim": 64,
        "num_key_value_heads": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "tie_word_embeddings": True,
    },
}
"""name -> config.json of a model of that shape. `tiny` is for trying things out on a CPU."""


def shape(name: str) -> ModelConfig:
    return read_config(SHAPES[name])


def write_folder(name: str, folder: Path) -> Path:
    """Writes what a peer needs to make the same model with random weights; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = {**SHAPES[name], "torch_dtype": "bfloat16", "hidden_act": "silu", "attention_bias": False}
    raw |= {"bos_token_id": None, "eos_token_id": raw["vocab_size"] - 1}
    (folder / "config.json").write_text(json.dumps(raw, indent=1) + "\n")
    return folder
