"""A model that costs next to nothing, with the tokenizer of another: what is left of a run is everything else."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ...runtime.checkpoints.config import read_config
from ...runtime.checkpoints.gguf_file import GGUFFile
from ...runtime.checkpoints.weights import list_parameters
from ...runtime.models.load import locate
from ...runtime.tokenizer.load import read_gguf_tokenizer
from ...runtime.tokenizer.tokenizer import TokenizerParts

_SHAPE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": True,
}
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def write_light_model(model: str, folder: Path) -> Path:
    """Writes a decoder of two narrow layers with random weights, and the tokenizer of `model`; returns the folder.

    Raises:
        ModelError: there is no such model, or its tokenizer cannot be used.
    """
    source = locate(model)
    folder.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        for name in _TOKENIZER_FILES:
            if (source / name).is_file():
                shutil.copy(source / name, folder / name)
        vocab_size = int(json.loads((source / "config.json").read_text())["vocab_size"])
    else:
        parts = read_gguf_tokenizer(GGUFFile(source))
        _write_tokenizer(parts, folder)
        vocab_size = len(parts.spellings)
    (folder / "config.json").write_text(json.dumps({**_SHAPE, "vocab_size": vocab_size}) + "\n")
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for parameter in list_parameters(read_config({**_SHAPE, "vocab_size": vocab_size})):
        for name, shape in parameter.sources:
            tensor = torch.ones(shape)
            if len(shape) > 1:
                tensor.normal_(0.0, 1.0 / math.sqrt(shape[-1]), generator=generator)
            tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")
    return folder


def _write_tokenizer(parts: TokenizerParts, folder: Path) -> None:
    """The tokenizer of a GGUF file, as a folder holds one."""
    description = json.loads(parts.pipeline.own.to_str())
    description["decoder"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    description["added_tokens"] += [
        {"id": token, "content": text, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for text, token in parts.control.ids.items()
    ]
    settings = {
        "chat_template": parts.chat_template,
        "add_bos_token": parts.adds_bos,
        "bos_token": None if parts.bos_id is None else parts.spellings[parts.bos_id],
        "eos_token": parts.spellings[parts.eos_ids[0]] if parts.eos_ids else None,
    }
    (folder / "tokenizer.json").write_text(json.dumps(description))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
