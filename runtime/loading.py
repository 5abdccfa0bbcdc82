"""Builds an engine: the one place that loads a model, sizes the cache and puts the parts together."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from ..constrain import GrammarCompiler
from ..kernels.attention import KVShape
from ..kernels.select import select_attention
from .client import ModelInfo
from .config import EngineConfig
from .engine import Engine
from .errors import ModelError, RequestError
from .models.load import LoadedModel, load_model
from .passes import DirectPasses
from .runner import ModelRunner
from .tokenizer import load_tokenizer

Progress = Callable[[str, int, int], None]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_engine(config: EngineConfig, progress: Progress | None = None) -> Engine:
    """Loads the model that `config` names and returns an engine ready to step.

    `progress(what, done, total)` is called while it loads.

    Raises:
        ModelError: the model's files cannot be used, or its cache does not fit into memory.
    """
    device = _device(config.device)
    loaded = load_model(config.model, dtype=config.dtype, device=device, progress=progress)
    tokenizer = load_tokenizer(loaded.path)
    page_size = config.page_size or (1 if device == "cpu" else 16)
    max_model_len = _max_model_len(config, loaded)
    shape = _kv_shape(config, loaded, device, page_size, max_model_len)
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
        runner=DirectPasses(ModelRunner(loaded.model, select_attention(shape, device), device), page_size),
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


def _max_model_len(config: EngineConfig, loaded: LoadedModel) -> int:
    limit = loaded.config.max_position
    if config.max_model_len is None:
        return limit
    if config.max_model_len > limit:
        raise RequestError(
            f"max_model_len is {config.max_model_len}, but the model was made for {limit}", param="max_model_len"
        )
    return config.max_model_len


def _kv_shape(config: EngineConfig, loaded: LoadedModel, device: str, page_size: int, max_model_len: int) -> KVShape:
    """Sizes the cache: by pages, by bytes, or by a share of the memory that is free now."""
    dtype = loaded.dtype if config.kv_cache_dtype == "auto" else _DTYPES[config.kv_cache_dtype]
    model = loaded.model
    shape = KVShape(model.num_layers, 0, page_size, model.num_kv_heads, model.head_dim, dtype)
    free = _free_memory(device)
    num_pages = config.num_pages
    if num_pages is None:
        budget = config.kv_cache_memory or int(free * config.memory_fraction)
        # More than every running sequence at full length is never needed.
        most = config.max_num_seqs * -(-max_model_len // page_size) + 1
        num_pages = min(budget // shape.page_bytes, most)
    needed = num_pages * shape.page_bytes
    if num_pages < 2 or needed > free:
        raise ModelError(
            f"the KV cache needs {max(needed, 2 * shape.page_bytes):,} bytes, but {free:,} are free: "
            "lower max_model_len, num_pages or kv_cache_memory, or use a smaller kv_cache_dtype"
        )
    return KVShape(shape.num_layers, num_pages, page_size, shape.num_kv_heads, shape.head_dim, dtype)


def _free_memory(device: str) -> int:
    """Bytes that can be taken on the device."""
    if device != "cpu":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 4 << 30  # a system that does not tell: what any machine that runs a language model has
