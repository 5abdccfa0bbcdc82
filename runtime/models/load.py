"""Loads models by name, folder or file: finds and reads the files, and builds the decoder."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...kernels.decoder.select import DecoderOps, select_ops
from ...kernels.linear.select import has_kernels
from ..checkpoints.checkpoint import Checkpoint, GGUFCheckpoint, SafetensorsCheckpoint, read_json_object
from ..checkpoints.config import ModelConfig, ModelShape, UnsupportedModelError, read_config
from ..checkpoints.gguf_file import GGUFFile
from ..checkpoints.locate import locate as locate
from ..checkpoints.locate import model_name
from ..checkpoints.quantised_folder import EXTRA_DTYPES, QuantisedFolder
from ..checkpoints.weights import Progress, check_shapes, list_parameters, load_parameters
from ..protocol.errors import ModelError, in_file
from .decoder import Decoder
from .model import Model
from .native import NativeDecoder, NativeTarget, load_native
from .quantised_linear import QuantisedLinear, StackedLinear, load_projections

_DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
_MAX_SETTING = 1e9
_SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model, and facts from its files.

    path    the GGUF file or the folder, which also holds the tokenizer
    dtype   dtype of activations
    """

    model: Model | NativeDecoder
    config: ModelShape
    name: str
    path: Path
    num_parameters: int
    dtype: torch.dtype
    device: torch.device
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Target:
    """Resolved options of `load_model`, which describes them."""

    dtype: torch.dtype
    device: str
    ops: DecoderOps
    keep_quantised: bool
    invariant: bool
    native: NativeTarget | None
    claim: Callable[[int], None] | None


def load_model(  # noqa: PLR0913  the targets of loading
    source: str | Path,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    backend: str = "auto",
    keep_quantised: bool | None = None,
    invariant: bool = False,
    native: NativeTarget | None = None,
    claim: Callable[[int], None] | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Loads a model by the name of a pullable model, a folder, a `.gguf` file, or a hub id `organisation/name`.

    dtype            auto (bfloat16 on a GPU and on a CPU with bfloat16 matrix instructions, else float32) or a dtype's
                     name
    backend          backend of a Decoder's operations, for select_ops; models of `transformers` have their own
    keep_quantised   keep weights that are stored quantised (AWQ, GPTQ, FP8, GGUF), instead of dequantising them once;
                     None: if the device has kernels for them
    invariant        make products with quantised weights that are kept independent of the number of rows
    native           target of a NativeDecoder, which is made if the CPU library has formats for the model
    claim            called with the bytes of a decoder's weights before any is read, unless `keep_quantised`; raises
                     ModelError for too many
    progress         called with (stage, done, total); stages are "download" (bytes) and "load" (tensors)

    Raises:
        ModelError: the source is not found, or its files cannot be used.
    """
    path = locate(source, progress=progress)
    resolved = resolve_dtype(dtype, device)
    if resolved == torch.float64 and backend == "auto":
        backend = "torch"  # the kernels compute in float32
    keep = has_kernels(device, resolved) if keep_quantised is None else keep_quantised
    target = _Target(resolved, device, select_ops(device, backend), keep, invariant, native, claim)
    if path.is_file():
        return _load_gguf(path, model_name(source, path), target, progress)
    return _load_folder(path, model_name(source, path), target, progress)


def resolve_dtype(name: str, device: str) -> torch.dtype:
    """Resolves the dtype of a setting on a device.

    Raises:
        ModelError: there is no such dtype.
    """
    if name != "auto":
        if name not in _DTYPES:
            raise ModelError(f"dtype must be auto or one of {', '.join(_DTYPES)}, got {name!r}")
        return _DTYPES[name]
    if torch.device(device).type == "cpu" and not _cpu_multiplies_bfloat16():
        return torch.float32
    return torch.bfloat16


def _cpu_multiplies_bfloat16() -> bool:
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") or capabilities.get("arm_bf16"))


def _load_gguf(path: Path, name: str, target: _Target, progress: Progress | None) -> LoadedModel:
    file = GGUFFile(path)
    config = read_config(file)
    eos_ids = [file.metadata(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    with in_file(path.name):
        model, num_parameters, dtype = _make_decoder(config, GGUFCheckpoint(file, config), target, progress)
    return LoadedModel(
        model=model,
        config=config,
        name=name,
        path=path,
        num_parameters=num_parameters,
        dtype=dtype,
        device=torch.device(target.device),
        eos_ids=_ids(eos_ids, config.vocab_size),
        bos_id=next(iter(_ids([file.metadata("tokenizer.ggml.bos_token_id")], config.vocab_size)), None),
    )


def _load_folder(path: Path, name: str, target: _Target, progress: Progress | None) -> LoadedModel:
    if not (path / "config.json").is_file():
        raise ModelError(f"the folder {path.name} has no config.json: give a model's folder or a .gguf file")
    raw = read_json_object(path / "config.json")
    generation_file = path / "generation_config.json"
    generation = read_json_object(generation_file) if generation_file.is_file() else {}
    model: Model | NativeDecoder
    config: ModelShape
    try:
        native = read_config(raw)
    except UnsupportedModelError:
        # The adapter imports transformers, which takes a second that native models do not need.
        generic = importlib.import_module(".transformers_model", __package__)
        adapter, config = generic.load_generic(path, raw, dtype=target.dtype, device=target.device)
        model, num_parameters, dtype = adapter, adapter.num_parameters(), target.dtype
    else:
        with in_file(path.name):
            checkpoint = _open_folder(path, raw, native)
            model, num_parameters, dtype = _make_decoder(native, checkpoint, target, progress)
        config = native
    facts = raw | generation
    eos = facts.get("eos_token_id")
    return LoadedModel(
        model=model,
        config=config,
        name=name,
        path=path,
        num_parameters=num_parameters,
        dtype=dtype,
        device=torch.device(target.device),
        eos_ids=_ids(eos if isinstance(eos, list) else [eos], config.vocab_size),
        bos_id=next(iter(_ids([facts.get("bos_token_id")], config.vocab_size)), None),
        sampling_defaults=_sampling_defaults(generation),
    )


def _open_folder(path: Path, raw: Mapping[str, Any], config: ModelConfig) -> Checkpoint:
    settings = raw.get("quantization_config")
    if not settings:
        return SafetensorsCheckpoint(path)
    if not isinstance(settings, dict):
        raise ModelError("quantization_config must be an object")
    wanted = {name for parameter in list_parameters(config) for name, _ in parameter.sources}
    return QuantisedFolder(SafetensorsCheckpoint(path, EXTRA_DTYPES), settings, wanted)


def _make_decoder(
    config: ModelConfig, checkpoint: Checkpoint, target: _Target, progress: Progress | None
) -> tuple[Decoder | NativeDecoder, int, torch.dtype]:
    """Loads a decoder; returns it with its number of parameters and the dtype of its activations."""
    if target.native is not None:
        decoder = load_native(config, checkpoint, target.native, progress)
        if decoder is not None:
            return decoder, decoder.num_parameters, torch.float32
    dtype, device = target.dtype, target.device
    if target.claim is not None and not target.keep_quantised:
        target.claim(sum(math.prod(one.shape) for one in list_parameters(config)) * dtype.itemsize)
    projections: dict[str, QuantisedLinear | StackedLinear] = {}
    if target.keep_quantised and isinstance(checkpoint, QuantisedFolder | GGUFCheckpoint):
        check_shapes(config, list_parameters(config), checkpoint)
        projections = load_projections(config, checkpoint, dtype=dtype, device=device, invariant=target.invariant)
    leave_out = {*projections, *(f"{name}_bias" for name in projections)}
    parameters = load_parameters(config, checkpoint, dtype=dtype, device=device, progress=progress, leave_out=leave_out)
    num_parameters = sum(parameter.numel() for parameter in parameters.values())
    num_parameters += sum(projection.num_parameters for projection in projections.values())
    return Decoder(config, parameters, target.ops, projections), num_parameters, dtype


def _ids(values: Iterable[object], vocab_size: int) -> tuple[int, ...]:
    """Returns the distinct values that are ids of the model's tokens; some files write -1 for none."""
    return tuple(dict.fromkeys(value for value in values if type(value) is int and 0 <= value < vocab_size))


def _sampling_defaults(generation: Mapping[str, Any]) -> dict[str, float]:
    """Returns the sampling parameters that a generation_config.json recommends; none if it does not sample."""
    if not generation.get("do_sample", False):
        return {}
    found = {key: generation[key] for key in _SAMPLING_DEFAULTS if type(generation.get(key)) in (int, float)}
    return {key: float(value) for key, value in found.items() if abs(value) <= _MAX_SETTING}
