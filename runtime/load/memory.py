"""Memory for the KV cache: the free memory, less that of weights and activations."""

from __future__ import annotations

import numpy as np
import torch

from ...kernels.attention.interface import AttentionBackend, AttentionBatch
from ..models.model import Model
from ..protocol.config import SchedulerLimits
from ..protocol.errors import ModelError
from ..runner.host_memory import FreeMemory

_GRAPHS = 896 << 20
"""Bytes reserved for CUDA graphs, which take one to two million each, for the token counts of penalties, and for
allocations of libraries at their first use."""


def free_on(device: str) -> FreeMemory:
    """Returns the memory that can be allocated on a GPU."""
    return FreeMemory(int(torch.cuda.mem_get_info(device)[0]), device)


def gpu_budget(device: str, fraction: float, activations: int) -> int:
    """Returns the bytes for the KV cache if `fraction` of the GPU's memory may be used in total."""
    free, total = torch.cuda.mem_get_info(device)
    return cache_budget(int(free), int(total), fraction, activations)


def cache_budget(free: int, total: int, fraction: float, activations: int) -> int:
    """Returns the bytes for the KV cache on a GPU of `total` bytes, `free` of which are left after loading the weights.

    Raises:
        ModelError: there are none.
    """
    budget = free - int(total * (1.0 - fraction)) - activations - _GRAPHS
    if budget <= 0:
        needed = total - free + activations + _GRAPHS
        raise ModelError(
            f"no memory is left for the KV cache: weights and activations need {needed:,} bytes, and memory_fraction "
            f"{fraction:g} allows {int(total * fraction):,} of the GPU's {total:,} ({free:,} are free now): raise "
            "memory_fraction, lower max_batch_tokens, use quantization, or stop other processes on the GPU"
        )
    return budget


def measure_activations(
    model: Model, attention: AttentionBackend, limits: SchedulerLimits, page_size: int, device: str
) -> int:
    """Measures the bytes of the largest pass besides weights and cache: a full batch, with logits for each sequence.

    `attention` needs pages for limits.max_batch_tokens tokens, besides page 0. These may be more than the model has
    positions, so all are computed at the first position.
    """
    num_tokens = limits.max_batch_tokens
    positions = np.arange(num_tokens)
    pages = np.arange(1, -(-num_tokens // page_size) + 1, dtype=np.int32)
    batch = AttentionBatch(
        query_start=np.array([0, num_tokens], np.int32),
        context_len=np.array([num_tokens], np.int32),
        page_table=pages[None],
        write_slot=pages[positions // page_size].astype(np.int64) * page_size + positions % page_size,
    )
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    with torch.inference_mode():
        attention.plan(batch)
        zeros = torch.zeros(num_tokens, dtype=torch.int64, device=device)
        hidden = model.forward(zeros, zeros, attention)
        logits = model.logits(hidden[: limits.max_num_seqs])
    # Besides these there are the sampler's workspace, the logits kept by graphs, and those of rows that request
    # log-probabilities, before and after penalties.
    beside = 5 * logits.nbytes
    del hidden, logits
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.empty_cache()
    return int(peak - before) + beside
