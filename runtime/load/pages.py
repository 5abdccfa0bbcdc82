"""Plans the memory of an engine before it is allocated: weights and tables, the largest pass, pages of the KV cache."""

from __future__ import annotations

from ..checkpoints.config import ModelShape
from ..protocol.config import EngineConfig, SchedulerLimits
from ..protocol.errors import ModelError, RequestError
from ..runner.host_memory import FreeMemory, free_memory

RESERVE = 128 << 20
"""Bytes of the host left free for unplanned use: requests, constraints, stacks of threads."""

_CPU_SHARE = 0.25


def max_model_len(config: EngineConfig, limit: int) -> int:
    """Returns the most tokens of a request, for a model with a limit of `limit`.

    Raises:
        RequestError: the settings request more.
    """
    if config.max_model_len is None:
        return limit
    if config.max_model_len > limit:
        raise RequestError(
            f"max_model_len is {config.max_model_len}, but the model supports {limit}: lower it or leave it out",
            param="max_model_len",
        )
    return config.max_model_len


def claim_host(num_bytes: int) -> None:
    """Raises ModelError if the host has no room for weights and tables of `num_bytes`."""
    free = free_memory()
    if num_bytes + RESERVE > free.num_bytes:
        raise ModelError(
            f"the model needs {num_bytes:,} bytes for weights and tables, plus {RESERVE:,}, but {free}: "
            "choose a smaller model, use quantization, lower max_model_len, or give it more memory"
        )


def named_pages(config: EngineConfig, page_bytes: int) -> int | None:
    """Returns the KV pages set by number or by bytes; None if unset. Raises ModelError: the bytes hold none."""
    if config.num_pages is None and config.kv_cache_memory is not None:
        if config.kv_cache_memory < 2 * page_bytes:
            raise ModelError(
                f"kv_cache_memory={config.kv_cache_memory:,} is too small: one page takes {page_bytes:,} bytes; "
                "raise it or leave it out"
            )
        return config.kv_cache_memory // page_bytes
    return config.num_pages


def host_pages(
    config: EngineConfig, page_bytes: int, pass_bytes: int, limits: SchedulerLimits, page_size: int, longest: int
) -> int:
    """Returns the number of KV pages in the host's memory: as set, or a fraction of the memory left by passes.

    pass_bytes   bytes of the largest pass, besides weights and cache
    longest      most tokens of a request

    Raises:
        ModelError: the pages do not fit, or not even one does.
    """
    free = free_memory()
    left = max(free.num_bytes - pass_bytes - RESERVE, 0)
    num_pages = named_pages(config, page_bytes)
    if num_pages is None:
        # Never more than needed for all running sequences at full length.
        most = limits.max_num_seqs * -(-longest // page_size) + 1
        num_pages = min(int(left * (config.memory_fraction or _CPU_SHARE)) // page_bytes, most)
    check_pages(num_pages, page_bytes, free, beside=pass_bytes + RESERVE)
    return num_pages


def check_pages(num_pages: int, page_bytes: int, free: FreeMemory, *, beside: int = 0) -> None:
    """Raises ModelError if the pages are too few, or do not fit into the free memory together with `beside` bytes."""
    needed = max(num_pages, 2) * page_bytes
    if num_pages < 2 or needed + beside > free.num_bytes:
        passes = f", plus {beside:,} for passes" if beside else ""
        raise ModelError(
            f"the KV cache needs {needed:,} bytes{passes}, but {free}: lower max_model_len, max_batch_tokens, "
            "num_pages or kv_cache_memory, or use a smaller kv_cache_dtype"
        )


def torch_pass_bytes(model: ModelShape, limits: SchedulerLimits, itemsize: int) -> int:
    """Estimates the bytes of torch's largest pass on a CPU besides weights and cache, its logits included.

    A layer's intermediate size is taken to be four times the hidden size, as usual.
    """
    heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    states = 4 * model.hidden_size + 2 * heads + 3 * 4 * model.hidden_size
    logits = model.vocab_size * (itemsize + 4)
    return limits.max_batch_tokens * (states * itemsize + logits)
