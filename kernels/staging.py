"""Transfers of small arrays between host and device: several per copy, through pinned memory, without synchronising.

Torch's allocator of pinned memory reuses a buffer only after the copies from or to it are done, so buffers alternate
without further care.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_ALIGNMENT = 64
"""Bytes. Kernels are compiled for pointers divisible by 16; a larger alignment gives each array its own cache lines."""


def upload(device: torch.device, *arrays: npt.NDArray[Any]) -> list[torch.Tensor]:
    """Copies arrays to the device in one copy; returns them in order, each with its own dtype and shape."""
    if device.type != "cuda":
        return [torch.from_numpy(np.array(array, order="C")) for array in arrays]
    starts, size = [], 0
    for array in arrays:
        starts.append(size)
        size += max(-(-array.nbytes // _ALIGNMENT), 1) * _ALIGNMENT
    buffer = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    view = buffer.numpy()
    for start, array in zip(starts, arrays, strict=True):
        view[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    sent = buffer.to(device, non_blocking=True)
    return [
        sent[start : start + array.nbytes].view(torch.from_numpy(array).dtype).view(array.shape)
        for start, array in zip(starts, arrays, strict=True)
    ]


class Download:
    """Pending copies from the device; call `wait` for them as late as possible."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._event: torch.cuda.Event | None = None
        if any(tensor.is_cuda for tensor in tensors):
            self._host = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()
        else:
            self._host = [tensor.clone() for tensor in tensors]

    def done(self) -> bool:
        """True if `wait` would return at once; a failure of the device is reported by `wait`."""
        try:
            return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]
        except RuntimeError:
            return True

    def wait(self) -> list[npt.NDArray[Any]]:
        if self._event is not None:
            self._event.synchronize()
        return [tensor.numpy() for tensor in self._host]
