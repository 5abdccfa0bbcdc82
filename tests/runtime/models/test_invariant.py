"""The deterministic mode's projections: all of them replaced, or none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from bough.kernels.attention.interface import AttentionBatch, AttentionLayer, Rotation
from bough.runtime.models.decoder import Decoder, Linear
from bough.runtime.models.invariant import InvariantLinear, make_invariant
from bough.runtime.models.load import load_model

from ...support.tiny_model import CONFIG, write_tiny_model
from ...support.triton_interpreter import DEVICE

NAMES = ("qkv", "out", "gate_up", "down")


class Product:
    """F.linear, which counts."""

    def __init__(self) -> None:
        self.weights: list[torch.Tensor] = []

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        self.weights.append(weight)
        return F.linear(x, weight, bias)


class NoAttention:
    """Hands the queries on."""

    def plan(self, batch: AttentionBatch) -> None: ...

    def run_qkv(self, layer: AttentionLayer, qkv: torch.Tensor, rotation: Rotation | None) -> torch.Tensor:
        num_heads, head_dim = CONFIG["num_attention_heads"], CONFIG["head_dim"]
        return qkv[:, : num_heads * head_dim].view(-1, num_heads, head_dim)


@pytest.fixture
def decoder(tmp_path: Path) -> Decoder:
    model = load_model(write_tiny_model(tmp_path), dtype="float32").model
    assert isinstance(model, Decoder)
    return model


def test_every_product_goes_through_it(decoder: Decoder) -> None:
    tokens, positions, product = torch.tensor([3, 1, 4]), torch.arange(3), Product()
    before = decoder.logits(decoder.forward(tokens, positions, NoAttention()))  # type: ignore[arg-type]
    weights = [getattr(layer, name).weight for layer in decoder.layers for name in NAMES] + [decoder.head.weight]  # type: ignore[attr-defined]
    make_invariant(decoder, product)
    assert torch.equal(decoder.logits(decoder.forward(tokens, positions, NoAttention())), before)  # type: ignore[arg-type]
    assert [weight.data_ptr() for weight in product.weights] == [weight.data_ptr() for weight in weights]


def test_with_the_kernel_a_token_is_the_same_in_any_company(tmp_path: Path) -> None:
    model = load_model(write_tiny_model(tmp_path), dtype="bfloat16", device=DEVICE, backend="torch").model
    assert isinstance(model, Decoder)
    make_invariant(model)
    tokens, positions = torch.arange(70, device=DEVICE) % 250, torch.zeros(70, dtype=torch.int64, device=DEVICE)
    together = model.logits(model.forward(tokens, positions, NoAttention()))  # type: ignore[arg-type]
    for row in (0, 33, 69):
        alone = model.logits(model.forward(tokens[row : row + 1], positions[:1], NoAttention()))  # type: ignore[arg-type]
        assert torch.equal(alone[0], together[row])


def test_the_bias_is_kept(decoder: Decoder) -> None:
    layer = decoder.layers[1]
    assert isinstance(layer.qkv, Linear)
    layer.qkv = Linear(layer.qkv.weight, torch.randn(len(layer.qkv.weight)))
    x = torch.randn(2, CONFIG["hidden_size"])
    before = layer.qkv(x)
    make_invariant(decoder, Product())
    assert isinstance(layer.qkv, InvariantLinear) and torch.equal(layer.qkv(x), before)


def test_what_is_no_linear_is_refused_and_nothing_changes(decoder: Decoder) -> None:
    decoder.layers[1].down = torch.nn.Identity()
    with pytest.raises(TypeError, match=r"layers\.1\.down is a Identity"):
        make_invariant(decoder, Product())
    assert not any(isinstance(getattr(layer, name), InvariantLinear) for layer in decoder.layers for name in NAMES)
    assert not isinstance(decoder.head, InvariantLinear)
