"""Builds engines on the CPU library; from a GGUF file without torch, whose import takes longer than everything else."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...constrain import GrammarCompiler
from ...kernels.native.library import load_library
from ...kernels.native.threads import Threads
from ..checkpoints.config import UnsupportedModelError, read_config
from ..checkpoints.gguf_file import GGUFFile
from ..checkpoints.gguf_tensors import GGUFTensors
from ..checkpoints.inventory import read_facts
from ..checkpoints.locate import locate, model_name
from ..engine.engine import Engine
from ..models.native import NATIVE_KINDS, NativeDecoder, NativeTarget, load_native
from ..protocol.config import EngineConfig
from ..protocol.counters import ModelInfo
from ..protocol.errors import ModelError, RequestError, in_file
from ..runner.host import may_have_gpu, num_threads
from ..runner.native_runner import NativeRunner
from ..runner.runner import DirectPasses
from ..sampler.native_sampler import NativeSampler
from ..tokenizer.load import gguf_tokenizer
from ..tokenizer.tokenizer import Tokenizer
from .pages import claim_host, host_pages, max_model_len

Progress = Callable[[str, int, int], None]

_ACTIVATIONS = ("auto", "int8", "mixed")


def load_gguf_engine(config: EngineConfig, progress: Progress | None = None) -> Engine | None:
    """Builds an engine on the CPU library from the GGUF file that `config` names; returns None if it needs torch.

    Raises:
        ModelError: the model's files cannot be used, or its cache does not fit into memory.
    """
    device = "cpu" if config.device == "auto" and not may_have_gpu() else config.device
    if config.attention_backend not in ("auto", "native") or obstacle_to_native(config, device) is not None:
        return None
    path = locate(config.model, progress=progress)
    if not path.is_file():
        return None
    file = GGUFFile(path)
    try:
        model = read_config(file)
    except UnsupportedModelError:
        return None
    tensors = GGUFTensors(file, model)
    if config.quantization is None and not tensors.is_quantised("model.layers.0.self_attn.q_proj.weight"):
        return None
    with ThreadPoolExecutor(1) as pool:  # the library packs weights while Python builds the tokenizer
        loading = pool.submit(load_native, model, tensors, native_target(config), progress)
        tokenizer = gguf_tokenizer(file)
        grammars = GrammarCompiler(tokenizer.vocabulary(model.vocab_size))
        with in_file(path.name):
            decoder = loading.result()
    if decoder is None:
        grammars.close()
        return None
    return native_engine(config, decoder, model_name(config.model, path), path, tokenizer, grammars)


def native_engine(
    config: EngineConfig,
    decoder: NativeDecoder,
    name: str,
    path: Path,
    tokenizer: Tokenizer,
    grammars: GrammarCompiler | None = None,
) -> Engine:
    """Builds an engine on `decoder`, whose model has this `name` and its files at `path`.

    Raises:
        ModelError: the cache does not fit into memory.
    """
    model, limits = decoder.config, config.limits("cpu")
    page_size = config.page_size or 1
    longest = max_model_len(config, model.max_position)
    kv_bits = 8 if config.kv_cache_dtype == "int8" else 16
    num_bytes, scale_bytes = decoder.kv_bytes(page_size, kv_bits)
    page_bytes = 2 * num_bytes + scale_bytes
    pass_bytes = decoder.pass_bytes(limits.max_batch_tokens, limits.max_batch_tokens)
    num_pages = host_pages(config, page_bytes, pass_bytes, limits, page_size, longest)
    info = ModelInfo(
        name=name,
        path=str(path),
        architecture=model.architecture,
        vocab_size=model.vocab_size,
        max_model_len=longest,
        max_request_tokens=min(longest, (num_pages - 1) * page_size),
        dtype="float32",
        device="cpu",
        num_parameters=decoder.num_parameters,
        page_size=page_size,
        num_pages=num_pages,
        backend="native",
        instructions=decoder.library.instructions,
        weights=config.quantization or stored_format(path),
        activations="int8/16" if decoder.struct.has_rests else "int8",
        kv_cache="int8" if kv_bits == 8 else "12-bit",
    )
    runner = NativeRunner(decoder, num_pages, page_size, kv_bits)
    sampler = NativeSampler(decoder.library, decoder.threads)
    return Engine(
        config=config,
        info=info,
        runner=DirectPasses(runner, page_size, sampler, exact=True, prepare=runner.prepare),
        tokenizer=tokenizer,
        grammars=grammars or GrammarCompiler(tokenizer.vocabulary(info.vocab_size)),
        clock=time.monotonic,
    )


def stored_format(path: Path) -> str:
    """Returns the format of most of a model's weights, as named in its files; "" if they cannot be read."""
    try:
        return read_facts(path).weights
    except ModelError:
        return ""


def native_target(config: EngineConfig) -> NativeTarget:
    """Returns the options of `load_native` for `config`, which must have no `obstacle_to_native`."""
    library = load_library()
    assert library is not None
    threads = Threads(library, num_threads())
    return NativeTarget(
        *(library, threads, config.quantization, config.max_model_len),
        has_rests=config.activations != "int8" and config.quantization != "w8a8",
        claim=claim_host,
    )


def obstacle_to_native(config: EngineConfig, device: str) -> RequestError | None:
    """Returns the reason, a setting or the machine, why the CPU library cannot run any model; None if it can."""
    for name, value, possible in (
        ("device", device, ("cpu",)),
        ("dtype", config.dtype, ("auto",)),
        ("kv_cache_dtype", config.kv_cache_dtype, ("auto", "int8")),
        ("quantization", config.quantization, (None, *NATIVE_KINDS)),
        ("activations", config.activations, ("auto", "int8") if config.quantization == "w8a8" else _ACTIVATIONS),
    ):
        if value not in possible:
            wanted = " or ".join(str(choice).lower() for choice in possible)
            return RequestError(f"attention_backend native needs {name} {wanted}, got {value}", param=name)
    if load_library() is None:
        needs = "x86 with AVX2 or ARM64, and bough installed with a C compiler available"
        return RequestError(f"attention_backend native needs {needs}", param="attention_backend")
    return None
