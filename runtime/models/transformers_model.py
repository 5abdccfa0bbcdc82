"""Adapter for any causal language model of `transformers`, run over our paged attention instead of its own cache."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...kernels.attention.interface import AttentionLayer, HeadAttention
from ...kernels.attention.reference import ragged_attention
from ..checkpoints.checkpoint import read_safetensors_header, safetensors_files
from ..checkpoints.config import ModelShape
from ..protocol.errors import ModelError

_NAME = "bough"
_KEYWORD = "bough_attention"  # passes the backend through the model's forward to our attention function
_IGNORED = ("auto_map", "attn_implementation", "_attn_implementation", "experts_implementation", "custom_pipelines")
_BATCH_DEPENDENT_ROPE = ("dynamic", "longrope")
_MAX_INTEGER = 1 << 31
_CHECK_LENGTHS = (5, 7)  # tokens of the two sequences that the check at loading runs
_CHECK_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}  # |difference| / |logits|, both Euclidean norms
_CHECK_TOLERANCE_HALF = 0.1  # rounding alone may send a token to another expert


class GenericModel:
    """A transformers model behind the interface of decoder.Decoder."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._base = model.base_model
        self._head = model.get_output_embeddings()
        text = model.config.get_text_config()
        self._scale = (getattr(text, "logit_scale", None) or 1.0) / (getattr(text, "logits_scaling", None) or 1.0)
        self._softcap: float | None = getattr(text, "final_logit_softcapping", None)
        try:
            geometry = _check(self, model)
        except (RuntimeError, TypeError, KeyError, AttributeError) as error:
            raise ModelError(f"{type(model).__name__} cannot run over paged attention: {error}") from error
        self.num_layers = len(geometry)
        self.num_heads, self.num_kv_heads, self.head_dim, _ = geometry[0]

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, attention: HeadAttention) -> torch.Tensor:
        """See Decoder.forward."""
        arguments = {_KEYWORD: attention}
        output = self._base(input_ids=tokens[None], position_ids=positions[None], use_cache=False, **arguments)
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    def logits(self, hidden: torch.Tensor, *, keep_dtype: bool = False) -> torch.Tensor:
        """See Decoder.logits; always float32."""
        scores: torch.Tensor = self._head(hidden).float()
        if self._scale != 1.0:
            scores = scores * self._scale
        if self._softcap is not None:
            scores = self._softcap * torch.tanh(scores / self._softcap)
        return scores

    def num_parameters(self) -> int:
        """Number of parameters of the model, tied ones counted once."""
        return sum(parameter.numel() for parameter in self._model.parameters())


def load_generic(
    folder: Path, raw: Mapping[str, Any], *, dtype: torch.dtype, device: str
) -> tuple[GenericModel, ModelShape]:
    """Builds the transformers model of a folder; `raw` is its config.json.

    No code of the folder runs: an `auto_map` is ignored. The model is then run once on a few tokens, with its own
    attention and with ours, and refused if the two differ.

    Raises:
        ModelError: transformers is not installed, does not know the model, or the model cannot run over our attention.
    """
    config_classes, model_classes = _import_transformers()
    model_type = raw.get("model_type")
    _check_raw(raw)
    if not isinstance(model_type, str) or model_type not in config_classes:
        raise ModelError(
            f"model_type {model_type!r} is unknown to the installed transformers; code in a model's folder is never run"
        )
    try:
        with _without_checkout():
            config = config_classes[model_type].from_dict({key: raw[key] for key in raw if key not in _IGNORED})
            if type(config) not in model_classes:
                raise ModelError(f"model_type {model_type!r} is not a causal language model")
            model = _build(model_classes[type(config)], config, folder, dtype).to(device)
        model.requires_grad_(False)
        model.eval()
        generic = GenericModel(model)
        return generic, _shape(model_type, generic, model)
    except ModelError:
        raise
    except Exception as error:  # the library checks little of a config before it computes with it
        raise ModelError(f"config.json: transformers cannot use it: {type(error).__name__}: {error}") from error


def _shape(model_type: str, generic: GenericModel, model: Any) -> ModelShape:
    text = model.config.get_text_config()
    return ModelShape(
        architecture=model_type,
        vocab_size=model.get_output_embeddings().weight.shape[0],
        hidden_size=text.hidden_size,
        num_layers=generic.num_layers,
        num_heads=generic.num_heads,
        num_kv_heads=generic.num_kv_heads,
        head_dim=generic.head_dim,
        max_position=getattr(text, "max_position_embeddings", None) or 2048,
    )


def _check_raw(raw: Mapping[str, Any]) -> None:
    """Refuses by name settings that would be computed wrongly, or are far out of range."""
    if raw.get("quantization_config"):
        raise ModelError("quantization_config: quantised Hugging Face checkpoints are not supported")
    for kind in _rope_kinds(raw.get("rope_parameters")) | _rope_kinds(raw.get("rope_scaling")):
        if kind in _BATCH_DEPENDENT_ROPE:
            raise ModelError(f"rope_type {kind!r} makes a token's key depend on later tokens, so keys cannot be cached")
    for key, value in raw.items():
        if isinstance(value, int) and abs(value) > _MAX_INTEGER:
            raise ModelError(f"{key} is out of bounds: {value}")
    num_layers = raw.get("num_hidden_layers", raw.get("n_layer", 1))
    if not isinstance(num_layers, int) or not 1 <= num_layers <= 1024:
        raise ModelError(f"num_hidden_layers must be from 1 to 1024, got {num_layers!r}")


def _rope_kinds(scaling: object) -> set[str]:
    """Returns the rope types in use, for the whole model or by kind of layer."""
    if not isinstance(scaling, Mapping):
        return set()
    kinds = {str(scaling[key]) for key in ("rope_type", "type") if key in scaling}
    return kinds.union(*map(_rope_kinds, scaling.values()))


def _build(model_class: Any, config: Any, folder: Path, dtype: torch.dtype) -> Any:
    """Builds the model with the folder's weights, after comparing sizes; every weight must be in the checkpoint."""
    stored = 0
    for path in safetensors_files(folder):
        stored += sum(torch.Size(shape).numel() for _, shape in read_safetensors_header(path).values())
    with torch.device("meta"):
        needed = sum(parameter.numel() for parameter in model_class(config).parameters())
    if needed > 2 * stored:
        raise ModelError(f"the config requires {needed} numbers, but the checkpoint has {stored}")
    try:
        model, report = model_class.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation="eager",
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ModelError(f"transformers cannot load {folder.name}: {error}") from error
    for problem in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if report.get(problem):
            raise ModelError(f"{folder.name}: {problem.replace('_', ' ')}: {sorted(map(str, report[problem]))[:3]}")
    return model


# -- our attention inside a transformers model -------------------------------------------------------------------


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention function registered with transformers. query [1, H, T, D], key, value [1, G, T, D] -> [1, T, H, D]."""
    backend: HeadAttention | None = others.get(_KEYWORD)
    if backend is None:
        raise ModelError(f"{type(module).__name__} does not receive the keyword arguments of the model's forward")
    unsupported = sorted(name for name in ("s_aux", "position_bias", "head_mask") if others.get(name) is not None)
    if unsupported or attention_mask is not None or not getattr(module, "is_causal", True):
        needed = ", ".join(unsupported) or "a mask of its own"
        raise ModelError(f"{type(module).__name__} needs {needed}, which paged attention does not have")
    if key.shape != value.shape:
        raise ModelError(f"{type(module).__name__} has keys and values of different shapes")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer = AttentionLayer(module.layer_idx, scale, sliding_window, softcap)
    q, k, v = (heads[0].transpose(0, 1) for heads in (query, key, value))
    return backend.run(layer, q, k, v)[None], None


@dataclass
class _Probe:
    """Backend without a cache that attends within each whole sequence and records its calls."""

    lengths: tuple[int, ...]
    geometry: dict[int, tuple[int, int, int, int | None]] = field(default_factory=dict)  # layer: H, G, D, window

    def run(self, layer: AttentionLayer, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See HeadAttention.run."""
        if layer.index in self.geometry:
            raise ModelError(f"layer {layer.index} calls attention more than once a step")
        self.geometry[layer.index] = (q.shape[1], k.shape[1], k.shape[2], layer.window)
        attend = partial(ragged_attention, scale=layer.scale, window=layer.window, softcap=layer.softcap)
        parts = zip(*(torch.split(x, list(self.lengths)) for x in (q, k, v)), strict=True)
        return torch.cat([attend(*part) for part in parts])


def _check(generic: GenericModel, model: Any) -> list[tuple[int, int, int, int | None]]:
    """Runs a few tokens with the model's own attention and then ours, which stays; returns the geometry by layer.

    Raises:
        ModelError: the logits differ, or the layers' keys and values are not all of one shape.
    """
    device = next(model.parameters()).device
    text = model.config.get_text_config()
    sequences = [torch.arange(1, length + 1, device=device) % text.vocab_size for length in _CHECK_LENGTHS]
    with torch.no_grad():
        expected = torch.cat([model(input_ids=tokens[None], use_cache=False).logits[0] for tokens in sequences]).float()
        model.set_attn_implementation(_NAME)
        positions = torch.cat([torch.arange(length, device=device) for length in _CHECK_LENGTHS])
        probe = _Probe(_CHECK_LENGTHS)
        got = generic.logits(generic.forward(torch.cat(sequences), positions, probe))
    geometry = [probe.geometry[layer] for layer in sorted(probe.geometry)]
    name = type(model).__name__
    num_layers = text.num_hidden_layers
    if sorted(probe.geometry) != list(range(num_layers)):
        raise ModelError(
            f"{name}: {len(probe.geometry)} of its {num_layers} layers use transformers' attention interface"
        )
    if len({(num_kv_heads, head_dim) for _, num_kv_heads, head_dim, _ in geometry}) != 1:
        raise ModelError(f"{name}: its layers' keys have different shapes")
    for layer, kind in enumerate(getattr(text, "layer_types", None) or ()):
        if kind != ("full_attention" if geometry[layer][3] is None else "sliding_attention"):
            raise ModelError(f"{name}: layer {layer} is of type {kind!r} but requests window {geometry[layer][3]}")
    tolerance = _CHECK_TOLERANCE.get(next(model.parameters()).dtype, _CHECK_TOLERANCE_HALF)
    difference = float((got - expected).norm() / expected.norm().clamp(min=1e-9))
    if not difference <= tolerance:  # a NaN is not
        raise ModelError(f"{name} computes something that bough does not see: logits differ by {difference:.2%}")
    return geometry


# -- importing transformers --------------------------------------------------------------------------------------


@contextmanager
def _without_checkout() -> Iterator[None]:
    """Hides our root folder from imports: transformers would take our `kernels` for a package that it looks for."""
    root, saved = Path(__file__).resolve().parents[2], sys.path.copy()
    sys.path[:] = [entry for entry in saved if Path(entry).resolve() != root]
    try:
        yield
    finally:
        sys.path[:] = saved


def _import_transformers() -> tuple[Any, Any]:
    """Returns transformers' tables model_type -> config class -> causal model class, with our attention registered."""
    with _without_checkout():
        try:
            from transformers import AttentionInterface, logging
            from transformers.models.auto import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING
        except ImportError as error:
            raise ModelError('this model needs transformers: pip install "bough[transformers]"') from error
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    # Without a mask function of the same name transformers builds no mask: the backend applies its own.
    AttentionInterface.register(_NAME, _attend)
    return CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING
