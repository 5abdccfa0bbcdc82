"""A model of random weights, small enough to be loaded in a moment, as a folder that every loader accepts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from .fakes import write_byte_tokenizer

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 258,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": 257,
    "torch_dtype": "float32",
}


def write_tiny_model(folder: Path, **changes: Any) -> Path:
    """Two layers over `byte_tokenizer`; the same weights each time. `changes` replace entries of CONFIG."""
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG | changes
    generator = torch.Generator().manual_seed(0)
    vocab, hidden, inner = config["vocab_size"], config["hidden_size"], config["intermediate_size"]
    deviation = 0.3 * (CONFIG["hidden_size"] / hidden) ** 0.5  # outputs of the same size whatever the width

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * deviation

    heads, kv_heads = (config[name] * config["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    tensors = {"model.embed_tokens.weight": noise(vocab, hidden), "lm_head.weight": noise(vocab, hidden)}
    tensors["model.norm.weight"] = torch.ones(hidden)
    for layer in range(config["num_hidden_layers"]):
        for name, shape in {
            "self_attn.q_proj": (heads, hidden),
            "self_attn.k_proj": (kv_heads, hidden),
            "self_attn.v_proj": (kv_heads, hidden),
            "self_attn.o_proj": (hidden, heads),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = noise(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = torch.ones(hidden)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    write_byte_tokenizer(folder)
    return folder
