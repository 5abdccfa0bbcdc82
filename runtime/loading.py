"""Builds an engine: the one place that loads a model, sizes the cache and puts the parts together."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import torch

from ..constrain import GrammarCompiler
from ..kernels.attention import KVShape
from ..kernels.drawing import triton_drawing
from ..kernels.select import select_attention
from ..kernels.work_planner import WorkPlanner
from .calibrate import TEXT, kv_scales
from .client import ModelInfo
from .config import EngineConfig, SchedulerLimits
from .engine import Engine
from .errors import ModelError, RequestError
from .gpu_device import on_device
from .gpu_grammars import DeviceGrammars
from .gpu_graphs import CudaGraphs, Eager
from .gpu_runner import GpuPasses
from .gpu_tree import SharedReads
from .memory import free_memory, gpu_budget, measure_activations
from .models.decoder import Decoder
from .models.invariant import make_invariant
from .models.load import LoadedModel, load_model
from .models.quantised import quantise_decoder
from .passes import DirectPasses, PassRunner
from .runner import ModelRunner
from .tokenizer import Tokenizer, load_tokenizer

Progress = Callable[[str, int, int], None]

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "fp8_e4m3": torch.float8_e4m3fn,
}
SWITCH_INTERVAL_S = 0.001
_CPU_SHARE = 0.25
_GPU_SHARE = 0.9


def load_engine(config: EngineConfig, progress: Progress | None = None) -> Engine:
    """Loads the model that `config` names and returns an engine ready to step.

    `progress(what, done, total)` is called while it loads.

    Raises:
        ModelError: the model's files cannot be used, or its cache does not fit into memory.
    """
    # Threads that answer clients, or fill masks, need not wait longer for the one that steps.
    sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
    device = _device(config.device)
    backend = _backend(config, device)
    with on_device(torch.device(device)):
        loaded = load_model(
            config.model,
            dtype=config.dtype,
            device=device,
            backend=backend,
            # Weights that are to be quantised otherwise are undone first.
            keep_quantised=None if config.quantization is None else False,
            invariant=config.deterministic,
            progress=progress,
        )
        return make_engine(config, loaded, load_tokenizer(loaded.path), progress)


def make_engine(
    config: EngineConfig, loaded: LoadedModel, tokenizer: Tokenizer, progress: Progress | None = None
) -> Engine:
    """An engine over a model that is loaded, on the device where it is.

    Raises:
        ModelError: the model cannot be quantised as asked, or its cache does not fit into memory.
    """
    device = str(loaded.device)
    backend = _backend(config, device)
    _convert(config, loaded, backend, progress)
    limits = config.limits(device)
    page_size = config.page_size or (1 if backend == "torch" else 16)
    max_model_len = _max_model_len(config, loaded)
    shape = _kv_shape(config, loaded, device, backend, limits, page_size, max_model_len)
    info = ModelInfo(
        name=loaded.name,
        path=str(loaded.path),
        architecture=loaded.config.architecture,
        vocab_size=loaded.config.vocab_size,
        max_model_len=max_model_len,
        max_request_tokens=min(max_model_len, (shape.num_pages - 1) * page_size),
        dtype=str(loaded.dtype).removeprefix("torch."),
        device=device,
        num_parameters=loaded.num_parameters,
        page_size=page_size,
        num_pages=shape.num_pages,
    )
    return Engine(
        config=config,
        info=info,
        runner=_runner(config, loaded, shape, limits, backend, max_model_len, tokenizer),
        tokenizer=tokenizer,
        grammars=GrammarCompiler(tokenizer.vocabulary(info.vocab_size)),
        clock=time.monotonic,
    )


def _device(device: str) -> str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise RequestError(f"device {device!r} was asked for, but torch sees no CUDA device", param="device")
    return device


def _backend(config: EngineConfig, device: str) -> str:
    """Which kernels run: "triton" or "torch"."""
    if config.attention_backend != "auto":
        backend = config.attention_backend
    else:
        backend = "torch" if device == "cpu" else "triton"
    if backend == "triton" and device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise RequestError(
            "Triton kernels need a GPU; on the CPU they only run interpreted, for tests, with TRITON_INTERPRET=1",
            param="attention_backend",
        )
    if backend == "torch" and config.kv_cache_dtype == "fp8_e4m3":
        raise RequestError("kv_cache_dtype fp8_e4m3 needs the Triton kernels of a GPU", param="kv_cache_dtype")
    return backend


def _convert(config: EngineConfig, loaded: LoadedModel, backend: str, progress: Progress | None) -> None:
    """Changes the layers' products to what `config` asks for, in place."""
    if config.quantization is None and not config.deterministic:
        return
    if not isinstance(loaded.model, Decoder):
        what = "quantization" if config.quantization is not None else "deterministic"
        raise ModelError(f"{what} is possible for models of the Llama family only, not {loaded.config.architecture}")
    if config.quantization is not None:
        quantise_decoder(loaded.model, config.quantization, invariant=config.deterministic, progress=progress)
    if config.deterministic and backend == "triton":
        make_invariant(loaded.model)


def _max_model_len(config: EngineConfig, loaded: LoadedModel) -> int:
    limit = loaded.config.max_position
    if config.max_model_len is None:
        return limit
    if config.max_model_len > limit:
        raise RequestError(
            f"max_model_len is {config.max_model_len}, but the model was made for {limit}", param="max_model_len"
        )
    return config.max_model_len


def _kv_shape(
    config: EngineConfig,
    loaded: LoadedModel,
    device: str,
    backend: str,
    limits: SchedulerLimits,
    page_size: int,
    max_model_len: int,
) -> KVShape:
    """Sizes the cache: by pages, by bytes, or by a share of the memory."""
    dtype = loaded.dtype if config.kv_cache_dtype == "auto" else _DTYPES[config.kv_cache_dtype]
    model = loaded.model

    def shape(num_pages: int) -> KVShape:
        return KVShape(model.num_layers, num_pages, page_size, model.num_kv_heads, model.head_dim, dtype)

    page_bytes = shape(0).page_bytes
    num_pages = config.num_pages
    if num_pages is None and config.kv_cache_memory is not None:
        num_pages = config.kv_cache_memory // page_bytes
    if num_pages is None and device == "cpu":
        # More than every running sequence at full length is never needed.
        most = limits.max_num_seqs * -(-max_model_len // page_size) + 1
        num_pages = min(int(free_memory(device) * (config.memory_fraction or _CPU_SHARE)) // page_bytes, most)
    elif num_pages is None:
        trial = select_attention(shape(-(-limits.max_batch_tokens // page_size) + 1), device, backend=backend)
        activations = measure_activations(model, trial, limits, page_size, device)
        del trial
        torch.cuda.empty_cache()
        num_pages = gpu_budget(device, config.memory_fraction or _GPU_SHARE, activations) // page_bytes
    needed, free = num_pages * page_bytes, free_memory(device)
    if num_pages < 2 or needed > free:
        raise ModelError(
            f"the KV cache needs {max(needed, 2 * page_bytes):,} bytes, but {free:,} are free: "
            "lower max_model_len, num_pages or kv_cache_memory, or use a smaller kv_cache_dtype"
        )
    return shape(num_pages)


def _runner(
    config: EngineConfig,
    loaded: LoadedModel,
    shape: KVShape,
    limits: SchedulerLimits,
    backend: str,
    max_model_len: int,
    tokenizer: Tokenizer,
) -> PassRunner:
    device = loaded.device
    if backend == "torch":
        plain = select_attention(shape, str(device), backend="torch")
        return DirectPasses(ModelRunner(loaded.model, plain, str(device)), shape.page_size)
    attention = select_attention(
        shape,
        str(device),
        backend="triton",
        deterministic=config.deterministic,
        max_num_seqs=limits.max_num_seqs,
        max_model_len=max_model_len,
    )
    if config.kv_cache_dtype == "fp8_e4m3":
        tokens = tokenizer.encode(TEXT)[: limits.max_batch_tokens]
        attention.set_scales(*kv_scales(loaded.model, tokens, loaded.dtype, device))
    graphs = config.cuda_graphs and device.type == "cuda" and isinstance(loaded.model, Decoder)
    drawing = triton_drawing(device, limits.max_num_seqs, loaded.config.vocab_size)
    runner = GpuPasses(
        loaded.model,
        attention,
        drawing,
        grammars=DeviceGrammars(loaded.config.vocab_size, limits.max_num_seqs + 1, device, drawing.advance),
        max_steps=config.max_decode_steps if isinstance(loaded.model, Decoder) else 1,
        overlaps=config.overlap,
        shared_reads=_shared_reads(config, loaded, shape, limits),
        replays=CudaGraphs() if graphs else Eager(),
    )
    if device.type == "cuda":
        runner.warm_up()
    return runner


def _shared_reads(
    config: EngineConfig, loaded: LoadedModel, shape: KVShape, limits: SchedulerLimits
) -> SharedReads | None:
    if config.deterministic or not config.enable_prefix_caching:
        return None
    planner = WorkPlanner(shape, loaded.model.num_heads, loaded.dtype, loaded.device)
    return SharedReads(planner.tree, limits.max_num_seqs, shape.page_size, loaded.device)
