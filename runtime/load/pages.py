"""Limits of a request's length, and the number of pages of the KV cache."""

from __future__ import annotations

from ..protocol.config import EngineConfig, SchedulerLimits
from ..protocol.errors import ModelError, RequestError
from ..runner.host import free_memory

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
            f"max_model_len is {config.max_model_len}, but the model was made for {limit}", param="max_model_len"
        )
    return config.max_model_len


def named_pages(config: EngineConfig, page_bytes: int) -> int | None:
    """KV pages as the settings have them, by number or by bytes."""
    if config.num_pages is None and config.kv_cache_memory is not None:
        return config.kv_cache_memory // page_bytes
    return config.num_pages


def host_pages(config: EngineConfig, page_bytes: int, limits: SchedulerLimits, page_size: int, longest: int) -> int:
    """KV pages in the host's memory if the settings do not name them: a share of what is free.

    longest    tokens of a request at most
    """
    # More than every running sequence at full length is never needed.
    most = limits.max_num_seqs * -(-longest // page_size) + 1
    return min(int(free_memory() * (config.memory_fraction or _CPU_SHARE)) // page_bytes, most)


def check_pages(num_pages: int, page_bytes: int, free: int) -> None:
    """Raises ModelError if so many pages are too few, or more than the `free` bytes hold."""
    needed = num_pages * page_bytes
    if num_pages < 2 or needed > free:
        raise ModelError(
            f"the KV cache needs {max(needed, 2 * page_bytes):,} bytes, but {free:,} are free: "
            "lower max_model_len, num_pages or kv_cache_memory, or use a smaller kv_cache_dtype"
        )
