"""Tensors of a decoder, their fusion and their loading: all shapes are checked before any is read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..protocol.errors import ModelError
from .config import ModelConfig

if TYPE_CHECKING:
    import torch

    from .checkpoint import Checkpoint

Progress = Callable[[str, int, int], None]  # (stage, done, total)

# A layer's parameter <- the tensors whose rows it concatenates. Those that a config does not use are left out.
_LAYER_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "input_norm": ("input_layernorm.weight",),
    "qkv": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "qkv_bias": ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"),
    "q_norm": ("self_attn.q_norm.weight",),
    "k_norm": ("self_attn.k_norm.weight",),
    "out": ("self_attn.o_proj.weight",),
    "out_bias": ("self_attn.o_proj.bias",),
    "post_norm": ("post_attention_layernorm.weight",),
    "gate_up": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "down": ("mlp.down_proj.weight",),
}
_UNUSED_SUFFIXES = ("rotary_emb.inv_freq", "rope_freqs.weight")  # follow from the config


class HasShapes(Protocol):
    """Facts about a checkpoint that are known before any tensor is read."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of all tensors by Hugging Face name."""


@dataclass(frozen=True)
class DecoderParameter:
    """One tensor of the decoder, with the checkpoint tensors, and their shapes, that it is fused from."""

    name: str
    sources: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the sources' concatenated rows."""
        return (sum(shape[0] for _, shape in self.sources), *self.sources[0][1][1:])


def list_parameters(config: ModelConfig) -> list[DecoderParameter]:
    """Lists every parameter of a decoder: embedding, norm, head (unless tied) and `layers.{i}.{name}`."""
    hidden = config.hidden_size
    parameters = [
        DecoderParameter("embedding", (("model.embed_tokens.weight", (config.vocab_size, hidden)),)),
        DecoderParameter("norm", (("model.norm.weight", (hidden,)),)),
    ]
    if not config.tie_embeddings:
        parameters.append(DecoderParameter("head", (("lm_head.weight", (config.vocab_size, hidden)),)))
    shapes = _layer_shapes(config)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        for name, suffixes in _LAYER_PARAMETERS.items():
            sources = tuple((prefix + suffix, shapes[suffix]) for suffix in suffixes if suffix in shapes)
            if sources:
                parameters.append(DecoderParameter(f"layers.{layer}.{name}", sources))
    return parameters


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (query, hidden),
        "self_attn.k_proj.weight": (key, hidden),
        "self_attn.v_proj.weight": (key, hidden),
        "self_attn.o_proj.weight": (hidden, query),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.qkv_bias:
        shapes |= {"self_attn.q_proj.bias": (query,), "self_attn.k_proj.bias": (key,), "self_attn.v_proj.bias": (key,)}
    if config.out_bias:
        shapes["self_attn.o_proj.bias"] = (hidden,)
    if config.qk_norm:
        shapes |= {"self_attn.q_norm.weight": (config.head_dim,), "self_attn.k_norm.weight": (config.head_dim,)}
    return shapes


def check_shapes(config: ModelConfig, parameters: list[DecoderParameter], checkpoint: HasShapes) -> None:
    """Compares names and shapes with the config, without reading any tensor.

    Raises:
        ModelError: a tensor is missing, has another shape, or would be left unused.
    """
    wanted = {name: shape for parameter in parameters for name, shape in parameter.sources}
    for name, shape in wanted.items():
        found = checkpoint.shapes.get(name)
        if found is None:
            raise ModelError(f"the checkpoint has no tensor {name}, which its config requires")
        if found != shape:
            raise ModelError(f"tensor {name} has shape {list(found)}, its config requires {list(shape)}")
    unused = [name for name in checkpoint.shapes if name not in wanted and not name.endswith(_UNUSED_SUFFIXES)]
    if config.tie_embeddings:
        unused = [name for name in unused if name != "lm_head.weight"]
    if unused:
        raise ModelError(f"the checkpoint has {len(unused)} tensors that its config does not use: {unused[:3]}")


def load_parameters(
    config: ModelConfig,
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype,
    device: str | torch.device,
    progress: Progress | None = None,
    leave_out: Collection[str] = (),
) -> dict[str, torch.Tensor]:
    """Reads, converts and fuses every parameter except those to leave out; holds at most one source tensor twice.

    Raises:
        ModelError: see check_shapes.
    """
    import torch  # noqa: PLC0415  shapes are checked without it

    parameters = list_parameters(config)
    check_shapes(config, parameters, checkpoint)
    parameters = [parameter for parameter in parameters if parameter.name not in leave_out]
    loaded: dict[str, torch.Tensor] = {}
    for done, parameter in enumerate(parameters, start=1):
        fused = torch.empty(parameter.shape, dtype=dtype, device=device)
        start = 0
        for name, shape in parameter.sources:
            fused[start : start + shape[0]].copy_(checkpoint.read(name))
            start += shape[0]
        loaded[parameter.name] = fused
        if progress is not None:
            progress("load", done, len(parameters))
    return loaded
