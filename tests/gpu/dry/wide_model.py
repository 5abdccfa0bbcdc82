"""A tiny model with the head size and the vocabulary of real ones, whose choices are clear."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from safetensors.torch import load_file, save_file

from ...support.tiny_model import write_tiny_model

VOCAB = 152_064
END = 257

_SHARPNESS = 4.0
"""By this the logits are multiplied: near ties are rare then, and few tokens are in a nucleus."""

_LETTERS = "etaoinshrdlucmfwypvbgkqjxz0123456789_.:,{}[]()<>/+*=-!?#&%$@ETAOINSHRDLU"


def write_wide_model(folder: Path) -> Path:
    """One layer; the same weights each time."""
    write_tiny_model(
        folder,
        vocab_size=VOCAB,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=128,
    )
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] *= _SHARPNESS
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _widen_tokenizer(folder / "tokenizer.json")
    return folder


def _widen_tokenizer(file: Path) -> None:
    """Adds words, so that each token is a text; none is ever written for a given text, which stays bytes."""
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    words = (
        first + "".join(rest)
        for size in (2, 3, 4)
        for first in ("", "Ġ")
        for rest in itertools.product(_LETTERS, repeat=size)
    )
    new = (word for word in words if word not in vocabulary)
    vocabulary |= {word: index for index, word in zip(range(258, VOCAB), new, strict=False)}
    file.write_text(json.dumps(tokenizer))
