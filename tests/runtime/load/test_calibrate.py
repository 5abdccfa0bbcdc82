"""Scales of an 8-bit cache: what a model's keys and values need."""

from __future__ import annotations

from pathlib import Path

import torch

from bough.runtime.load.calibrate import TEXT, kv_scales
from bough.runtime.models.decoder import Decoder
from bough.runtime.models.load import load_model
from bough.runtime.tokenizer.load import load_tokenizer

from ...support.tiny_model import write_tiny_model


def test_every_head_fits_with_room_to_spare(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    model = load_model(folder, dtype="float32").model
    assert isinstance(model, Decoder)
    tokens = load_tokenizer(folder).encode(TEXT)[:300]
    k_scale, v_scale = kv_scales(model, tokens, torch.float32, torch.device("cpu"))
    assert k_scale.shape == v_scale.shape == (2, 2)
    for scale in (k_scale, v_scale):
        largest = scale * 448 / 2
        assert (largest > 0.05).all() and (largest < 100).all()
        assert len(set(scale.flatten().tolist())) == 4  # each head has its own


def test_other_text_of_the_model_stays_within_the_scales(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    model = load_model(folder, dtype="float32").model
    assert isinstance(model, Decoder)
    tokens = load_tokenizer(folder).encode(TEXT)
    half, other = tokens[: len(tokens) // 2], tokens[len(tokens) // 2 :]
    for scale, seen in zip(
        kv_scales(model, half, torch.float32, torch.device("cpu")),
        kv_scales(model, other, torch.float32, torch.device("cpu")),
        strict=True,
    ):
        assert (seen / 2 <= scale).all()
