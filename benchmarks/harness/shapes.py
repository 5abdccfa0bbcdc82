"""Shapes of well-known models, as in their config.json; no weights, and no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...runtime.checkpoints.config import ModelConfig, read_config

SHAPES: Mapping[str, Mapping[str, Any]] = json.loads(Path(__file__).with_name("shapes.json").read_text())
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
