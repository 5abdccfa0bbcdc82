"""Decoder of the Llama family: Llama, Mistral, Qwen2, Qwen3, SmolLM2, SmolLM3."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from ...kernels.attention.interface import AttentionBackend, AttentionLayer, HeadNorm
from ...kernels.decoder.select import TORCH_OPS, DecoderOps
from ...kernels.linear.select import FewRowsProduct
from ..checkpoints.config import ModelConfig, RopeConfig
from .rope_frequencies import attention_factor, rope_frequencies

_TABLE_CHUNK = 16384
"""Positions computed at a time, which limits the additional memory for building a table."""


class RotaryPositions:
    """Cosines and sines of token positions, for kernels.decoder.reference.rotate.

    num_tabulated    computes the angles of positions 0 .. num_tabulated once, 8 * head_dim bytes each, and `angles`
                     looks them up in one launch: for a GPU, where the dozen launches of the formula cost more than
                     the arithmetic. The values are the same to the bit. 0: each call computes them, for any position
    """

    def __init__(self, rope: RopeConfig, head_dim: int, device: torch.device, num_tabulated: int = 0) -> None:
        self._frequencies = torch.from_numpy(rope_frequencies(rope, head_dim)).to(device)
        self._factor = attention_factor(rope)
        self._table: torch.Tensor | None = None  # [num_tabulated, 2, 1, head_dim] float32
        if num_tabulated:
            self._table = torch.empty(num_tabulated, 2, 1, head_dim, device=device)
            for start in range(0, num_tabulated, _TABLE_CHUNK):
                positions = torch.arange(start, min(start + _TABLE_CHUNK, num_tabulated), device=device)
                torch.stack(self._compute(positions), dim=1, out=self._table[start : start + _TABLE_CHUNK])

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns cosines and signed sines, once a step for all layers.

        positions   [T] int64
        returns     [T, 1, head_dim] float32, twice
        """
        if self._table is None:
            return self._compute(positions)
        cos, sin = self._table.index_select(0, positions).unbind(1)
        return cos, sin

    def _compute(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = positions[:, None, None].float() * self._frequencies
        cos, sin = angles.cos(), angles.sin()
        if self._factor != 1.0:
            cos, sin = cos * self._factor, sin * self._factor
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


_MAX_TABULATED = 1 << 18
"""Most positions whose angles a GPU tabulates, 256 MiB with heads of 128; a model with more computes its angles."""

Projection = Callable[[torch.Tensor], torch.Tensor]  # [T, N] -> [T, M]


@dataclass(frozen=True)
class Linear:
    """x W^T + b. `weight` [M, N], `bias` [M] or None; `few_rows` is used for few rows where it is faster than torch."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    few_rows: FewRowsProduct | None = field(default=None, repr=False)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        product = None if self.few_rows is None else self.few_rows.multiply(x, self.bias)
        return F.linear(x, self.weight, self.bias) if product is None else product


@dataclass
class Layer:
    """One layer's parameters. The projections may be replaced by quantised ones."""

    input_norm: torch.Tensor
    qkv: Projection  # rows: all query heads, all key heads, all value heads
    attention: AttentionLayer
    out: Projection
    post_norm: torch.Tensor
    gate_up: Projection
    down: Projection
    rotates: bool


class Decoder:
    """Token ids and positions in, hidden states out; keys and values live only in the attention backend.

    `parameters` are those of weights.list_parameters, all of one dtype on one device, without those of `projections`:
    by a weight's name ("layers.3.qkv"), the operator with that weight and its bias. `ops` computes everything between
    the matrix products. `forward` and `logits` never wait for the device and no shape in them depends on data, so that
    a CUDA graph may capture them if `attention` and `ops` allow it.
    """

    def __init__(
        self,
        config: ModelConfig,
        parameters: Mapping[str, torch.Tensor],
        ops: DecoderOps | None = None,
        projections: Mapping[str, Projection] | None = None,
    ) -> None:
        self.config = config
        self.ops = TORCH_OPS if ops is None else ops
        self.num_layers = config.num_layers
        self.num_heads = config.num_heads
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        self.embedding = parameters["embedding"]
        self.norm = parameters["norm"]
        head = parameters.get("head", self.embedding)
        self.head: Projection = Linear(head, few_rows=self.ops.few_rows(head))
        made = {} if projections is None else projections
        self.layers = [_make_layer(config, parameters, made, self.ops, index) for index in range(config.num_layers)]
        device = self.embedding.device
        tabulated = device.type != "cpu" and config.max_position <= _MAX_TABULATED
        num_tabulated = config.max_position if tabulated else 0
        self._positions = RotaryPositions(config.rope, config.head_dim, device, num_tabulated)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, attention: AttentionBackend) -> torch.Tensor:
        """Computes one step over the flat batch that `attention` was planned for.

        tokens, positions   [T] int64
        returns             [T, hidden_size], after the last norm
        """
        ops, eps = self.ops, self.config.norm_eps
        hidden = F.embedding(tokens, self.embedding)
        rotation = self._positions.angles(positions)
        delta = None
        for layer in self.layers:
            if delta is None:
                qkv = layer.qkv(ops.rms_norm(hidden, layer.input_norm, eps))
            else:
                hidden, qkv = self._project(layer.qkv, hidden, delta, layer.input_norm)
            attended = attention.run_qkv(layer.attention, qkv, rotation if layer.rotates else None)
            delta = layer.out(attended.flatten(-2))
            hidden, expanded = self._project(layer.gate_up, hidden, delta, layer.post_norm, gated=True)
            delta = layer.down(expanded)
        assert delta is not None
        return ops.add_rms_norm(hidden, delta, self.norm, eps)

    def _project(
        self,
        projection: Projection,
        hidden: torch.Tensor,
        delta: torch.Tensor,
        norm: torch.Tensor,
        *,
        gated: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Computes hidden + delta, possibly in `hidden`, and the projection of its norm, in one launch where possible.

        hidden, delta   [T, hidden_size]
        gated           silu(gate) * up of the projection, instead of itself
        """
        ops, eps = self.ops, self.config.norm_eps
        few_rows = projection.few_rows if isinstance(projection, Linear) else None
        bias = projection.bias if isinstance(projection, Linear) else None
        if few_rows is not None:
            found = few_rows.multiply_normed(hidden, delta, norm, eps, bias, gated=gated)
            if found is not None:
                return found
        normed = ops.add_rms_norm(hidden, delta, norm, eps)
        if not gated:
            return hidden, projection(normed)
        expanded = None if few_rows is None else few_rows.multiply_gated(normed, bias)
        return hidden, ops.silu_multiply(projection(normed)) if expanded is None else expanded

    def logits(self, hidden: torch.Tensor, *, keep_dtype: bool = False) -> torch.Tensor:
        """Returns scores of the next token for the given rows of `hidden`.

        hidden       [R, hidden_size]
        keep_dtype   keep the dtype of the weights, for a sampler that widens them as it reads
        returns      [R, vocab_size] float32, unless `keep_dtype`
        """
        scores = self.head(hidden)
        return scores if keep_dtype else scores.float()


def _make_layer(
    config: ModelConfig,
    parameters: Mapping[str, torch.Tensor],
    made: Mapping[str, Projection],
    ops: DecoderOps,
    index: int,
) -> Layer:
    def find(name: str) -> torch.Tensor | None:
        return parameters.get(f"layers.{index}.{name}")

    def require(name: str) -> torch.Tensor:
        return parameters[f"layers.{index}.{name}"]

    def project(name: str) -> Projection:
        if (projection := made.get(f"layers.{index}.{name}")) is not None:
            return projection
        weight = require(name)
        return Linear(weight, find(f"{name}_bias"), ops.few_rows(weight))

    q_norm, k_norm = find("q_norm"), find("k_norm")
    norm = HeadNorm(q_norm, k_norm, config.norm_eps) if q_norm is not None and k_norm is not None else None
    return Layer(
        input_norm=require("input_norm"),
        qkv=project("qkv"),
        attention=AttentionLayer(index, config.head_dim**-0.5, config.windows[index], norm=norm),
        out=project("out"),
        post_norm=require("post_norm"),
        gate_up=project("gate_up"),
        down=project("down"),
        rotates=config.rope_layers[index],
    )
