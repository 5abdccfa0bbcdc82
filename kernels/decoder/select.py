"""Chooses the implementation of the decoder's operations for a device."""

from __future__ import annotations

import importlib.util

import torch

from .ops import DecoderOps
from .torch_ops import TorchOps


def select_ops(device: str | torch.device, backend: str = "auto") -> DecoderOps:
    """The operations that a decoder on `device` is given.

    backend    "triton"; "torch"; or "auto": Triton on a GPU if it is installed, else torch

    Raises:
        ValueError: no such backend.
    """
    if backend not in ("auto", "torch", "triton"):
        raise ValueError(f"backend must be auto, torch or triton, got {backend!r}")
    on_gpu = torch.device(device).type == "cuda"
    if backend == "triton" or (backend == "auto" and on_gpu and importlib.util.find_spec("triton") is not None):
        from .triton_ops import TritonOps

        return TritonOps()
    return TorchOps()
