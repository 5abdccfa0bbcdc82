"""Builds an engine in torch: loads a model, sizes the cache and puts the parts together."""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Callable

import torch

from ...constrain import GrammarCompiler
from ...kernels.attention.interface import KVShape
from ...kernels.attention.plan.planner import WorkPlanner
from ...kernels.attention.plan.work_list import FIXED_SPLIT
from ...kernels.attention.select import select_attention
from ...kernels.decode_step.select import triton_drawing
from ...kernels.native.library import load_library
from ...kernels.native.threads import Threads
from ..checkpoints.locate import locate
from ..engine.engine import Engine
from ..models.decoder import Decoder
from ..models.invariant import make_invariant
from ..models.load import LoadedModel, load_model
from ..models.native import NATIVE_KINDS, NativeDecoder
from ..models.quantised_linear import QuantisedLinear, quantise_decoder
from ..protocol.config import EngineConfig, SchedulerLimits
from ..protocol.counters import ModelInfo
from ..protocol.errors import ModelError, RequestError
from ..runner.gpu_device import on_device
from ..runner.gpu_grammars import DeviceGrammars
from ..runner.gpu_graphs import CudaGraphs, Eager, Replays
from ..runner.gpu_mixed import MixedPasses, sizes_up_to
from ..runner.gpu_runner import GpuPasses
from ..runner.gpu_shared_reads import SharedReads
from ..runner.host import hidden_gpu, num_threads
from ..runner.runner import DirectPasses, PassRunner
from ..runner.torch_runner import ModelRunner
from ..sampler.native_sampler import NativeSampler
from ..sampler.torch_sampler import TorchSampler
from ..tokenizer.load import load_tokenizer
from ..tokenizer.tokenizer import Tokenizer
from .calibrate import TEXT, kv_scales
from .load_native import native_engine, native_target, obstacle_to_native, stored_format
from .memory import free_on, gpu_budget, measure_activations
from .pages import check_pages, claim_host, host_pages, max_model_len, named_pages, torch_pass_bytes

Progress = Callable[[str, int, int], None]

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "fp8_e4m3": torch.float8_e4m3fn,
}
_GPU_SHARE = 0.9

logger = logging.getLogger("bough.load")


def load_engine(config: EngineConfig, progress: Progress | None = None) -> Engine:
    """Loads the model that `config` names and returns an engine ready to step; start.start_engine is the shorter way.

    `progress(what, done, total)` is called while it loads.

    Raises:
        ModelError: the model's files cannot be used, or its cache does not fit into memory.
    """
    device = _device(config.device)
    backend = _backend(config, device)
    if backend == "torch" and config.attention_backend == "auto" and config.dtype == "auto" and device == "cpu":
        _warn_of_torch(config)
    with on_device(torch.device(device)):
        loaded = load_model(
            config.model,
            dtype=config.dtype,
            device=device,
            backend="torch" if backend == "native" else backend,
            # Weights that are to be quantised differently are dequantised first.
            keep_quantised=None if config.quantization is None else False,
            invariant=config.deterministic,
            native=native_target(config) if backend == "native" else None,
            claim=claim_host if device == "cpu" and config.quantization is None else None,
            progress=progress,
        )
        return make_engine(config, loaded, load_tokenizer(loaded.path), progress)


def make_engine(
    config: EngineConfig, loaded: LoadedModel, tokenizer: Tokenizer, progress: Progress | None = None
) -> Engine:
    """Builds an engine over a loaded model, on the model's device.

    Raises:
        ModelError: the model cannot be quantised or computed as requested, or its cache does not fit into memory.
    """
    device = str(loaded.device)
    backend = _backend(config, device)
    if isinstance(loaded.model, NativeDecoder):
        return native_engine(config, loaded.model, loaded.name, loaded.path, tokenizer)
    if backend == "native":
        if config.attention_backend == "native":
            raise ModelError(
                "attention_backend native needs a model of the Llama family whose layers are quantised, in the file or "
                f"by quantization, and whose widths are multiples of 32 (w8a8: 64); {loaded.name} is not such a model"
            )
        backend = "torch"
        _check_formats(config, backend)
    _convert(config, loaded, backend, progress)
    limits = config.limits(device)
    page_size = config.page_size or (16 if backend == "triton" else 1)
    longest = max_model_len(config, loaded.config.max_position)
    shape = _kv_shape(config, loaded, device, backend, limits, page_size, longest)
    info = ModelInfo(
        name=loaded.name,
        path=str(loaded.path),
        architecture=loaded.config.architecture,
        vocab_size=loaded.config.vocab_size,
        max_model_len=longest,
        max_request_tokens=min(longest, (shape.num_pages - 1) * page_size),
        dtype=str(loaded.dtype).removeprefix("torch."),
        device=device,
        num_parameters=loaded.num_parameters,
        page_size=page_size,
        num_pages=shape.num_pages,
        backend=backend,
        instructions=_instructions(device),
        weights=config.quantization or _weights(loaded),
        activations=str(loaded.dtype).removeprefix("torch."),
        kv_cache=str(shape.dtype).removeprefix("torch."),
    )
    return Engine(
        config=config,
        info=info,
        runner=_runner(config, loaded, shape, limits, backend, longest, tokenizer),
        tokenizer=tokenizer,
        grammars=GrammarCompiler(tokenizer.vocabulary(info.vocab_size)),
        clock=time.monotonic,
    )


def _device(device: str) -> str:
    if device == "auto":
        if torch.cuda.is_available():
            return "cuda"
        if (gpu := hidden_gpu()) is not None:
            raise RequestError(
                f"device auto: this machine has an NVIDIA GPU ({gpu}), but torch {torch.__version__} cannot use it: "
                "install a CUDA build of torch and a matching driver (scripts/install_torch.py picks the build), or "
                'force the CPU with --device cpu (device="cpu")',
                param="device",
            )
        return "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise RequestError(
            f"device is {device!r}, but torch finds no CUDA device: leave device out",
            param="device",
        )
    return device


def _warn_of_torch(config: EngineConfig) -> None:
    """Warns that torch computes because the CPU library is missing, where it could be available, with the remedy."""
    stored = stored_format(locate(config.model))
    quantised = config.quantization in NATIVE_KINDS or (
        config.quantization is None and stored.startswith(("Q", "awq", "gptq"))
    )
    if quantised and load_library() is None and platform.machine() in ("x86_64", "AMD64", "aarch64", "arm64"):
        logger.warning(
            "the CPU library is missing, so torch computes, several times slower: install a C compiler and reinstall "
            "bough (pip install --force-reinstall --no-deps bough, or make dev in a checkout), on x86 with AVX2 or "
            "ARM64; --attention-backend torch selects torch without this warning"
        )


def _instructions(device: str) -> str:
    """Returns the instruction set that torch uses on a processor, or the name of the GPU."""
    return torch.backends.cpu.get_cpu_capability() if device == "cpu" else torch.cuda.get_device_name(device)


def _weights(loaded: LoadedModel) -> str:
    """Returns the format of the layers' weights in memory."""
    dtype = str(loaded.dtype).removeprefix("torch.")
    kept = isinstance(loaded.model, Decoder) and isinstance(loaded.model.layers[0].down, QuantisedLinear)
    return (stored_format(loaded.path) or dtype) if kept else dtype


def _backend(config: EngineConfig, device: str) -> str:
    """Returns the kernels to use: "triton", "torch", or "native", if the CPU library has formats for the model.

    Raises:
        RequestError: the requested ones cannot run here, or not with the other settings.
    """
    obstacle = obstacle_to_native(config, device)
    backend = config.attention_backend
    if backend == "auto":
        backend = "triton" if device != "cpu" else "torch" if obstacle else "native"
    if backend == "native" and obstacle is not None:
        raise obstacle
    if backend == "triton" and device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise RequestError(
            "Triton kernels need a GPU; on a CPU they run only in the interpreter, for tests (TRITON_INTERPRET=1)",
            param="attention_backend",
        )
    _check_formats(config, backend)
    return backend


def _check_formats(config: EngineConfig, backend: str) -> None:
    """Raises RequestError if only other kernels support the requested formats."""
    wanted, kernels = {
        "fp8_e4m3": ("triton", "Triton kernels on a GPU"),
        "int8": ("native", "a model that the CPU library supports (attention_backend native)"),
    }.get(config.kv_cache_dtype, (backend, ""))
    if backend != wanted:
        raise RequestError(f"kv_cache_dtype {config.kv_cache_dtype} needs {kernels}", param="kv_cache_dtype")
    if backend != "native" and config.activations != "auto":
        needs = "a model that the CPU library supports (attention_backend native)"
        raise RequestError(f"activations {config.activations} needs {needs}", param="activations")


def _convert(config: EngineConfig, loaded: LoadedModel, backend: str, progress: Progress | None) -> None:
    """Converts the layers' products as requested by `config`, in place."""
    if config.quantization is None and not config.deterministic:
        return
    if not isinstance(loaded.model, Decoder):
        what = "quantization" if config.quantization is not None else "deterministic"
        raise ModelError(f"{what} supports only models of the Llama family, not {loaded.config.architecture}")
    if config.quantization is not None:
        quantise_decoder(loaded.model, config.quantization, invariant=config.deterministic, progress=progress)
    if config.deterministic and backend == "triton":
        make_invariant(loaded.model)


def _kv_shape(
    config: EngineConfig,
    loaded: LoadedModel,
    device: str,
    backend: str,
    limits: SchedulerLimits,
    page_size: int,
    longest: int,
) -> KVShape:
    """Sizes the cache: by pages, by bytes, or by a fraction of the memory."""
    dtype = loaded.dtype if config.kv_cache_dtype == "auto" else _DTYPES[config.kv_cache_dtype]
    model = loaded.model
    assert not isinstance(model, NativeDecoder)

    def shape(num_pages: int) -> KVShape:
        return KVShape(model.num_layers, num_pages, page_size, model.num_kv_heads, model.head_dim, dtype)

    page_bytes = shape(0).page_bytes
    if device == "cpu":
        pass_bytes = torch_pass_bytes(loaded.config, limits, loaded.dtype.itemsize)
        return shape(host_pages(config, page_bytes, pass_bytes, limits, page_size, longest))
    num_pages = named_pages(config, page_bytes)
    if num_pages is None:
        trial = select_attention(shape(-(-limits.max_batch_tokens // page_size) + 1), device, backend=backend)
        activations = measure_activations(model, trial, limits, page_size, device)
        del trial
        torch.cuda.empty_cache()
        num_pages = gpu_budget(device, config.memory_fraction or _GPU_SHARE, activations) // page_bytes
    check_pages(num_pages, page_bytes, free_on(device))
    return shape(num_pages)


def _runner(
    config: EngineConfig,
    loaded: LoadedModel,
    shape: KVShape,
    limits: SchedulerLimits,
    backend: str,
    longest: int,
    tokenizer: Tokenizer,
) -> PassRunner:
    device = loaded.device
    assert not isinstance(loaded.model, NativeDecoder)
    if backend == "torch":
        plain = select_attention(shape, str(device), backend="torch")
        library = load_library()
        sampler = TorchSampler() if library is None else NativeSampler(library, Threads(library, num_threads()))
        return DirectPasses(ModelRunner(loaded.model, plain, str(device)), shape.page_size, sampler)
    attention = select_attention(
        shape,
        str(device),
        backend="triton",
        deterministic=config.deterministic,
        max_num_seqs=limits.max_num_seqs,
        max_model_len=longest,
    )
    if config.kv_cache_dtype == "fp8_e4m3":
        tokens = tokenizer.encode(TEXT)[: limits.max_batch_tokens]
        attention.set_scales(*kv_scales(loaded.model, tokens, loaded.dtype, device))
    planner = WorkPlanner(
        shape,
        loaded.model.num_heads,
        loaded.dtype,
        device,
        fixed_split=FIXED_SPLIT if config.deterministic else None,
    )
    drawing = triton_drawing(device, limits.max_num_seqs, loaded.config.vocab_size)
    captures = config.cuda_graphs and device.type == "cuda" and isinstance(loaded.model, Decoder)
    replays: Replays = CudaGraphs() if captures else Eager()
    shares = config.enable_prefix_caching and not config.deterministic
    runner = GpuPasses(
        MixedPasses(
            loaded.model,
            attention,
            replays,
            planner if captures else None,
            sizes=sizes_up_to(limits.max_batch_tokens),
        ),
        drawing,
        grammars=DeviceGrammars(loaded.config.vocab_size, limits.max_num_seqs + 1, device, drawing.advance),
        max_steps=config.max_decode_steps if isinstance(loaded.model, Decoder) else 1,
        overlaps=config.overlap,
        shared_reads=SharedReads(planner.tree, limits.max_num_seqs, shape.page_size, device) if shares else None,
    )
    if device.type == "cuda":
        runner.warm_up()
    return runner
