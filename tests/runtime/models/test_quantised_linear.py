"""Rounding a decoder's weights, and GGUF files whose blocks stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from bough.kernels.linear.formats import PackedWeight, dequantise
from bough.runtime.models.decoder import Decoder, Linear
from bough.runtime.models.load import load_model
from bough.runtime.models.quantised_linear import TORCH_KINDS, QuantisedLinear, StackedLinear, quantise_decoder
from bough.runtime.protocol.errors import ModelError

from ...support.tiny_model import write_tiny_model
from ..checkpoints.test_gguf_blocks import random_blocks
from .test_load import make_reference, write_gguf


def logits_of(model: Any, make_runner: Any, make_stream: Any, vocab_size: int = 40) -> torch.Tensor:
    tokens = [(7 * i) % vocab_size for i in range(24)]
    return make_runner(model, page_size=8).step([(make_stream(tokens), len(tokens))])[0]


# -- rounding -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "bound"), [("fp8", 0.4), ("int8", 0.08), ("w8a8", 0.1), ("int4", 0.7), ("int4-g32", 0.7)]
)
def test_quantise_decoder(kind: str, bound: float, tmp_path: Path, make_runner: Any, make_stream: Any) -> None:
    exact, rounded = (load_model(write_tiny_model(tmp_path / "tiny"), dtype="float32").model for _ in range(2))
    assert isinstance(exact, Decoder) and isinstance(rounded, Decoder)
    steps: list[tuple[str, int, int]] = []
    quantise_decoder(rounded, kind, progress=lambda *step: steps.append(step))
    assert steps == [("quantise", 1, 2), ("quantise", 2, 2)]
    for layer in rounded.layers:
        assert all(isinstance(getattr(layer, name), QuantisedLinear) for name in ("qkv", "out", "gate_up", "down"))
    assert isinstance(rounded.head, Linear)
    expected = logits_of(exact, make_runner, make_stream, 258)
    got = logits_of(rounded, make_runner, make_stream, 258)
    assert 1e-3 < float((got - expected).norm() / expected.norm()) < bound
    quantised = rounded.layers[0].down
    assert isinstance(quantised, QuantisedLinear) and isinstance(exact.layers[0].down, Linear)
    weight = exact.layers[0].down.weight
    assert float((dequantise(quantised.weight) - weight).norm() / weight.norm()) < 0.1
    with pytest.raises(ModelError, match=r"layers\.0\.qkv is already quantised"):
        quantise_decoder(rounded, kind)


def test_the_head_on_request(tmp_path: Path) -> None:
    model = load_model(write_tiny_model(tmp_path / "tiny"), dtype="float32").model
    assert isinstance(model, Decoder)
    quantise_decoder(model, "int8", include_head=True)
    assert isinstance(model.head, QuantisedLinear)


def test_an_unknown_kind_is_named(tmp_path: Path) -> None:
    model = load_model(write_tiny_model(tmp_path / "tiny"), dtype="float32").model
    assert isinstance(model, Decoder)
    with pytest.raises(ModelError, match="int3"):
        quantise_decoder(model, "int3")
    assert set(TORCH_KINDS) == {"fp8", "int8", "w8a8", "int4", "int4-g32"}


def test_biases_stay(tmp_path: Path, save_checkpoint: Any) -> None:
    make_reference("llama", tmp_path, save_checkpoint, attention_bias=True, num_hidden_layers=1)
    model = load_model(tmp_path, dtype="float32").model
    assert isinstance(model, Decoder) and isinstance(model.layers[0].qkv, Linear)
    bias = model.layers[0].qkv.bias
    assert bias is not None
    quantise_decoder(model, "int8")
    assert isinstance(model.layers[0].qkv, QuantisedLinear) and model.layers[0].qkv.bias is not None
    assert torch.equal(model.layers[0].qkv.bias, bias)


# -- GGUF ---------------------------------------------------------------------------------------------------------


def write_blocks(path: Path, reference: Any, formats: dict[str, str]) -> Path:
    """The reference's tensors in a GGUF file; those that `formats` names by a part of theirs are random blocks."""

    def encode(name: str, values: np.ndarray) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
        for part, format_name in formats.items():
            if part in name and values.ndim == 2:
                blocks = random_blocks(format_name, *values.shape, seed=len(name))
                return blocks, gguf.GGMLQuantizationType[format_name]
        return values, gguf.GGMLQuantizationType.F32

    return write_gguf(reference, path, encode=encode)


MIXED = {"q_proj": "Q4_K", "k_proj": "Q4_K", "v_proj": "Q6_K", "o_proj": "Q4_0", "mlp": "Q5_K", "embed": "Q8_0"}


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
@pytest.mark.parametrize(
    "formats", [{"_proj": "Q4_1"}, {"_proj": "Q8_0"}, MIXED, {"down_proj": "Q5_0", "gate_proj": "Q5_1"}]
)
def test_gguf_kept_equals_gguf_undone(
    formats: dict[str, str], model_type: str, tmp_path: Path, save_checkpoint: Any, make_runner: Any, make_stream: Any
) -> None:
    reference = make_reference(model_type, tmp_path, save_checkpoint, num_hidden_layers=2)
    path = write_blocks(tmp_path / "tiny.gguf", reference, formats)
    undone, kept = (load_model(path, dtype="float32", keep_quantised=keep) for keep in (False, True))
    assert isinstance(undone.model, Decoder) and isinstance(kept.model, Decoder)
    assert kept.num_parameters == undone.num_parameters
    assert isinstance(undone.model.layers[0].qkv, Linear)
    layer = kept.model.layers[0]
    if formats is MIXED:
        assert isinstance(layer.qkv, StackedLinear) and len(layer.qkv.parts) == 3
        assert isinstance(layer.gate_up, QuantisedLinear)
    if "gate_proj" in formats:
        assert isinstance(layer.gate_up, Linear), "its other half is no block format"
    assert isinstance(layer.down, QuantisedLinear) and isinstance(layer.down.weight, PackedWeight)
    expected = logits_of(undone.model, make_runner, make_stream)
    got = logits_of(kept.model, make_runner, make_stream)
    torch.testing.assert_close(got, expected, rtol=0, atol=2e-4 * float(expected.abs().max()))


def test_the_cpu_undoes_by_default(tmp_path: Path, save_checkpoint: Any) -> None:
    reference = make_reference("llama", tmp_path, save_checkpoint, num_hidden_layers=1)
    model = load_model(write_blocks(tmp_path / "tiny.gguf", reference, {"_proj": "Q4_1"}), dtype="bfloat16").model
    assert isinstance(model, Decoder) and isinstance(model.layers[0].down, Linear)
