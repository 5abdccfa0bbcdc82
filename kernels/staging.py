"""Host and device exchange small arrays: several in one copy, through pinned memory, without waiting for the device.

Torch's allocator of pinned memory gives a buffer out again only when the copies from or to it have been made, so that
buffers take turns by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_ALIGNMENT = 64
"""Bytes. Kernels are compiled for pointers divisible by 16; more keeps arrays in cache lines of their own."""


def upload(device: torch.device, *arrays: npt.NDArray[Any]) -> list[torch.Tensor]:
    """The arrays on the device, in order, each of its own dtype and shape; one copy in all."""
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
    """Copies from the device that have been asked for; `wait` for them as late as possible."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._event: torch.cuda.Event | None = None
        if any(tensor.is_cuda for tensor in tensors):
            self._host = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()
        else:
            self._host = [tensor.clone() for tensor in tensors]

    def done(self) -> bool:
        """True if `wait` would not wait; if the device has failed, it is for `wait` to say so."""
        try:
            return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]
        except RuntimeError:
            return True

    def wait(self) -> list[npt.NDArray[Any]]:
        if self._event is not None:
            self._event.synchronize()
        return [tensor.numpy() for tensor in self._host]
