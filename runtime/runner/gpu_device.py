"""Contexts for calls of torch: select the thread's current GPU, and translate errors that the engine handles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..protocol.errors import DeviceLostError

_NO_HOST_MEMORY = "DefaultCPUAllocator"
"""Prefix of torch's RuntimeError message when the host is out of memory."""


@contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """Puts Triton's launches, new streams and events on `device` within the context. Does nothing if it is no GPU.

    Raises:
        MemoryError: memory ran out within. Cached memory is released first.
        DeviceLostError: something failed within, and the GPU no longer serves this process.
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
    """Raises MemoryError in place of torch's exceptions when memory runs out."""
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
    """Returns True if, after an error, the next call fails too, as all do once a kernel has gone wrong."""
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False
