"""Models for benchmarks, none downloaded: well-known shapes with random weights, generated on the device; and a model
of almost no cost, with the tokenizer of another.

The time of a benchmark does not depend on the values of the weights, as long as they are not zeros.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file

from ...kernels.decoder.select import select_ops
from ...runtime.checkpoints.config import read_config
from ...runtime.checkpoints.gguf_file import GGUFFile
from ...runtime.checkpoints.weights import list_parameters
from ...runtime.engine.engine import Engine
from ...runtime.load.load_torch import make_engine
from ...runtime.models.decoder import Decoder
from ...runtime.models.load import LoadedModel, locate, resolve_dtype
from ...runtime.protocol.config import EngineConfig
from ...runtime.tokenizer.load import build_gguf_tokenizer, read_gguf_tokenizer
from ...runtime.tokenizer.tokenizer import Tokenizer, TokenizerParts
from .shapes import shape

END = "<|im_end|>"


def random_model(name: str, *, device: str, dtype: str = "auto", seed: int = 0) -> LoadedModel:
    """A decoder of the shape `name` whose activations keep about the size that trained ones have."""
    config, resolved = shape(name), resolve_dtype(dtype, device)
    generator = torch.Generator(device).manual_seed(seed)
    num_inputs = {"out": config.num_heads * config.head_dim, "down": config.intermediate_size}
    parameters = {}
    for parameter in list_parameters(config):
        tensor = torch.empty(parameter.shape, dtype=resolved, device=device)
        if tensor.dim() == 1:  # a norm's weight; these shapes have no biases
            tensor.uniform_(0.9, 1.1, generator=generator)
        else:
            # Outputs as large as inputs, but smaller where they are added to the residual.
            kind = parameter.name.rpartition(".")[2]
            narrowed = 2 * config.num_layers if kind in num_inputs else 1
            deviation = 1.0 / math.sqrt(narrowed) / math.sqrt(num_inputs.get(kind, config.hidden_size))
            tensor.normal_(0.0, deviation, generator=generator)
        parameters[parameter.name] = tensor
    return LoadedModel(
        model=Decoder(config, parameters, select_ops(device)),
        config=config,
        name=name,
        path=Path(name),
        num_parameters=sum(tensor.numel() for tensor in parameters.values()),
        dtype=resolved,
        device=torch.device(device),
        eos_ids=(config.vocab_size - 1,),
    )


def random_engine(config: EngineConfig) -> Engine:
    """An engine whose model is `config.model`, one of SHAPES, with random weights. It names its device."""
    loaded = random_model(config.model, device=config.device, dtype=config.dtype, seed=config.seed)
    return make_engine(config, loaded, byte_tokenizer(loaded.config.vocab_size))


# -- A tokenizer -------------------------------------------------------------------------------------------------------


def byte_tokenizer(vocab_size: int) -> Tokenizer:
    """A tokenizer of single bytes. Words, of which texts are never made, take the other ids below `vocab_size`, so that
    every id means something; the last one ends a turn. Raises ValueError: there are more bytes than ids."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    if vocab_size <= len(letters):
        raise ValueError(f"vocab_size must be above {len(letters)}, got {vocab_size}")
    words = [f"Ġw{number}" for number in range(vocab_size - 1 - len(letters))]
    fields = {
        "model": "gpt2",
        "tokens": [*letters, *words, END],
        "token_type": [*[1] * (vocab_size - 1), 3],  # texts, and one that controls
        "merges": [],
        "eos_token_id": vocab_size - 1,
    }
    return Tokenizer(build_gguf_tokenizer({f"tokenizer.ggml.{name}": value for name, value in fields.items()}))


# -- A light model ----------------------------------------------------------------------------------------------------


_SHAPE: dict[str, Any] = json.loads(Path(__file__).with_name("light.json").read_text())
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def write_light_model(model: str, folder: Path) -> Path:
    """Writes a decoder of two narrow layers with random weights, and the tokenizer of `model`; returns the folder.
    Raises ModelError: there is no such model, or its tokenizer cannot be used."""
    source = locate(model)
    folder.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        for path in [source / name for name in _TOKENIZER_FILES if (source / name).is_file()]:
            shutil.copy(path, folder)
        vocab_size = int(json.loads((source / "config.json").read_text())["vocab_size"])
    else:
        parts = read_gguf_tokenizer(GGUFFile(source))
        write_tokenizer(parts, folder)
        vocab_size = len(parts.spellings)
    config, generator, tensors = {**_SHAPE, "vocab_size": vocab_size}, torch.Generator().manual_seed(0), {}
    (folder / "config.json").write_text(json.dumps(config) + "\n")
    for parameter in list_parameters(read_config(config)):
        for name, size in parameter.sources:
            tensor = torch.ones(size)
            if len(size) > 1:
                tensor.normal_(0.0, 1.0 / math.sqrt(size[-1]), generator=generator)
            tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")
    return folder


def write_tokenizer(parts: TokenizerParts, folder: Path) -> None:
    """Writes tokenizer.json and its settings: a byte-level tokenizer of a GGUF file, as a folder holds one.

    What transformers makes of such a file splits digits and line breaks in other ways, puts a token before each text,
    and writes spaces as letters: no two sides would have the same tokens.
    """
    document: dict[str, Any] = json.loads(parts.pipeline.own.to_str())
    document["decoder"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    document["post_processor"] = None
    document["model"]["vocab"] |= parts.control.ids
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    document["added_tokens"] += [{"id": token, "content": text, **plain} for text, token in parts.control.ids.items()]
    document["added_tokens"].sort(key=lambda entry: entry["id"])
    first_end = parts.spellings[min(parts.eos_ids)] if parts.eos_ids else None
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": parts.chat_template,
        "add_bos_token": parts.adds_bos,
        "bos_token": None if parts.bos_id is None else parts.spellings[parts.bos_id],
        "eos_token": END if END in parts.control.ids else first_end,
        "model_max_length": 1 << 20,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer.json").write_text(json.dumps(document))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
