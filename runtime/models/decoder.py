"""The decoder of the Llama family: Llama, Mistral, Qwen2, Qwen3, SmolLM2, SmolLM3."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ...kernels.attention import AttentionBackend
from ...kernels.reference import rms_norm, rotate, silu_multiply
from .config import ModelConfig
from .rope import RotaryPositions

Projection = Callable[[torch.Tensor], torch.Tensor]  # [T, N] -> [T, M]


@dataclass(frozen=True)
class Linear:
    """x W^T + b. `weight` [M, N], `bias` [M] or None."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass
class Layer:
    """One layer's parameters. The projections may be replaced by quantised ones."""

    input_norm: torch.Tensor
    qkv: Projection  # rows: all query heads, all key heads, all value heads
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: Projection
    post_norm: torch.Tensor
    gate_up: Projection
    down: Projection
    rotates: bool
    window: int | None


class Decoder:
    """Token ids and positions in, hidden states out; keys and values live in the attention backend alone.

    `parameters` are those of weights.list_parameters, all of one dtype on one device.
    """

    def __init__(self, config: ModelConfig, parameters: Mapping[str, torch.Tensor]) -> None:
        self.config = config
        self.num_layers = config.num_layers
        self.num_heads = config.num_heads
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        self.embedding = parameters["embedding"]
        self.norm = parameters["norm"]
        self.head: Projection = Linear(parameters.get("head", self.embedding))
        self.layers = [_make_layer(config, parameters, index) for index in range(config.num_layers)]
        self._positions = RotaryPositions(config.rope, config.head_dim, self.embedding.device)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, attention: AttentionBackend) -> torch.Tensor:
        """One step over the flat batch that `attention` was planned for.

        tokens, positions   [T] int64
        returns             [T, hidden_size], after the last norm
        """
        hidden = F.embedding(tokens, self.embedding)
        cos, sin = self._positions.angles(positions)
        for index, layer in enumerate(self.layers):
            hidden += self._attend(index, layer, hidden, cos, sin, attention)
            normed = rms_norm(hidden, layer.post_norm, self.config.norm_eps)
            hidden += layer.down(silu_multiply(layer.gate_up(normed)))
        return rms_norm(hidden, self.norm, self.config.norm_eps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores of the next token, for the rows of `hidden` given only.

        hidden    [R, hidden_size]
        returns   [R, vocab_size] float32
        """
        return self.head(hidden).float()

    def _attend(
        self,
        index: int,
        layer: Layer,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        """The attention half of a layer, without the residual."""
        normed = rms_norm(hidden, layer.input_norm, self.config.norm_eps)
        num_rotated = self.num_heads + self.num_kv_heads
        heads = layer.qkv(normed).view(-1, num_rotated + self.num_kv_heads, self.head_dim)
        rotated, v = heads[:, :num_rotated], heads[:, num_rotated:]
        if layer.q_norm is not None and layer.k_norm is not None:
            q = rms_norm(rotated[:, : self.num_heads], layer.q_norm, self.config.norm_eps)
            k = rms_norm(rotated[:, self.num_heads :], layer.k_norm, self.config.norm_eps)
            rotated = torch.cat((q, k), dim=1)
        if layer.rotates:
            rotated = rotate(rotated, cos, sin)
        q, k = rotated[:, : self.num_heads], rotated[:, self.num_heads :]
        attended = attention.run(index, q, k, v, scale=self.head_dim**-0.5, window=layer.window)
        return layer.out(attended.flatten(-2))


def _make_layer(config: ModelConfig, parameters: Mapping[str, torch.Tensor], index: int) -> Layer:
    def find(name: str) -> torch.Tensor | None:
        return parameters.get(f"layers.{index}.{name}")

    def require(name: str) -> torch.Tensor:
        return parameters[f"layers.{index}.{name}"]

    return Layer(
        input_norm=require("input_norm"),
        qkv=Linear(require("qkv"), find("qkv_bias")),
        q_norm=find("q_norm"),
        k_norm=find("k_norm"),
        out=Linear(require("out"), find("out_bias")),
        post_norm=require("post_norm"),
        gate_up=Linear(require("gate_up")),
        down=Linear(require("down")),
        rotates=config.rope_layers[index],
        window=config.windows[index],
    )
