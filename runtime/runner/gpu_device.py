"""Contexts of calls of torch: a GPU is made the thread's current one, and errors that the engine handles are named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..protocol.errors import DeviceLostError

_NO_HOST_MEMORY = "DefaultCPUAllocator"
"""Begins the reason of the RuntimeError by which torch tells that the host has no memory."""


@contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """Triton's launches, new streams and events are on `device` within. Nothing happens if it is no GPU.

    Raises:
        MemoryError: there was too little within. What was cached is given back first.
        DeviceLostError: something failed within, and the GPU serves this process no more.
    """
    if device.type != "cuda":
        with named_memory_errors():
            yield
        return
    try:
        with torch.cuda.device(device), named_memory_errors():
            yield
    except RuntimeError as error:
        if _is_lost(device):
            raise DeviceLostError(f"{device} has failed, and computes no more for this process: {error}") from error
        raise


@contextmanager
def named_memory_errors() -> Iterator[None]:
    """Raises MemoryError in place of what torch raises when memory runs out."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise MemoryError(str(error)) from error
    except RuntimeError as error:
        if _NO_HOST_MEMORY in str(error):
            raise MemoryError(str(error)) from error
        raise


def _is_lost(device: torch.device) -> bool:
    """After an error: whether the next call fails, too, as all do once a kernel has gone wrong."""
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False
