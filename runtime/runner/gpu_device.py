"""Context of all calls of a GPU: makes it the thread's current one, and names an error that it does not survive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..protocol.errors import DeviceLostError


@contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """Triton's launches, new streams and events are on `device` within. Nothing happens if it is no GPU.

    Raises:
        DeviceLostError: something failed within, and the GPU serves this process no more.
    """
    if device.type != "cuda":
        yield
        return
    try:
        with torch.cuda.device(device):
            yield
    except RuntimeError as error:
        if _is_lost(device):
            raise DeviceLostError(f"{device} has failed, and computes no more for this process: {error}") from error
        raise


def _is_lost(device: torch.device) -> bool:
    """After an error: whether the next call fails, too, as all do once a kernel has gone wrong."""
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False
