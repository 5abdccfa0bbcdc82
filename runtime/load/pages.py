"""Plans the memory of an engine before it is taken: weights and tables, the largest pass, pages of the KV cache."""

from __future__ import annotations

from ..checkpoints.config import ModelShape
from ..protocol.config import EngineConfig, SchedulerLimits
from ..protocol.errors import ModelError, RequestError
from ..runner.host_memory import FreeMemory, free_memory

RESERVE = 128 << 20
"""Bytes of the host that stay free for what is not planned: requests, constraints, stacks of threads."""

_CPU_SHARE = 0.25


def max_model_len(config: EngineConfig, limit: int) -> int:
    """Tokens of a request at most, of a model made for `limit`.

    Raises:
        RequestError: more are asked for.
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
    """KV pages as the settings have them, by number or by bytes. Raises ModelError: bytes that hold none."""
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
    """KV pages in the host's memory: those that the settings name, or a share of what passes leave.

    pass_bytes   of the largest pass, beside weights and cache
    longest      tokens of a request at most

    Raises:
        ModelError: they do not fit, or none do.
    """
    free = free_memory()
    left = max(free.num_bytes - pass_bytes - RESERVE, 0)
    num_pages = named_pages(config, page_bytes)
    if num_pages is None:
        # More than every running sequence at full length is never needed.
        most = limits.max_num_seqs * -(-longest // page_size) + 1
        num_pages = min(int(left * (config.memory_fraction or _CPU_SHARE)) // page_bytes, most)
    check_pages(num_pages, page_bytes, free, beside=pass_bytes + RESERVE)
    return num_pages


def check_pages(num_pages: int, page_bytes: int, free: FreeMemory, *, beside: int = 0) -> None:
    """Raises ModelError if so many pages are too few, or do not fit into what is free, with the bytes `beside` them."""
    needed = max(num_pages, 2) * page_bytes
    if num_pages < 2 or needed + beside > free.num_bytes:
        passes = f", plus {beside:,} for passes" if beside else ""
        raise ModelError(
            f"the KV cache needs {needed:,} bytes{passes}, but {free}: lower max_model_len, max_batch_tokens, "
            "num_pages or kv_cache_memory, or use a smaller kv_cache_dtype"
        )


def torch_pass_bytes(model: ModelShape, limits: SchedulerLimits, itemsize: int) -> int:
    """Estimates what the largest pass of torch on a CPU takes beside weights and cache, its logits included.

    A layer's intermediate states are counted as those of the usual proportions: four times the hidden size.
    """
    heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    states = 4 * model.hidden_size + 2 * heads + 3 * 4 * model.hidden_size
    logits = model.vocab_size * (itemsize + 4)
    return limits.max_batch_tokens * (states * itemsize + logits)
