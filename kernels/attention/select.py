"""Chooses the implementation for a device; no other module depends on the kind of device."""

from __future__ import annotations

import importlib.util
import os
from typing import Literal, overload

import torch

from .decode_rows import DeviceAttention
from .interface import AttentionBackend, KVShape


@overload
def select_attention(
    shape: KVShape,
    device: str,
    *,
    backend: Literal["triton"],
    deterministic: bool = ...,
    max_num_seqs: int = ...,
    max_model_len: int | None = ...,
) -> DeviceAttention: ...


@overload
def select_attention(
    shape: KVShape,
    device: str,
    *,
    backend: str = ...,
    deterministic: bool = ...,
    max_num_seqs: int = ...,
    max_model_len: int | None = ...,
) -> AttentionBackend: ...


def select_attention(
    shape: KVShape,
    device: str,
    *,
    backend: str = "auto",
    deterministic: bool = False,
    max_num_seqs: int = 256,
    max_model_len: int | None = None,
) -> AttentionBackend:
    """An attention backend with a zeroed cache of `shape` on `device`.

    backend         "triton"; "torch"; or "auto": Triton on a GPU if it is installed, else torch. On a CPU Triton serves
                    where its interpreter is on (TRITON_INTERPRET=1): slowly, for tests
    deterministic   results of a sequence do not depend on what else is computed, to the bit. Triton only
    max_num_seqs    rows, but for one, of the page table that the backend keeps itself, if it does
    max_model_len   tokens of a row of it; None: all that the cache holds

    Raises:
        ValueError: no such backend, or it cannot do this on this device.
    """
    if backend not in ("auto", "torch", "triton"):
        raise ValueError(f"backend must be auto, torch or triton, got {backend!r}")
    on_gpu = torch.device(device).type == "cuda"
    if backend == "auto":
        backend = "triton" if on_gpu and importlib.util.find_spec("triton") is not None else "torch"
    if backend == "torch":
        if deterministic:
            raise ValueError("deterministic attention needs backend triton")
        from .torch_backend import TorchAttention

        return TorchAttention(shape, device)
    if not on_gpu and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(f"Triton runs on a GPU, or with TRITON_INTERPRET=1, not on {device}; use backend torch")
    if shape.dtype.itemsize == 1 and on_gpu and torch.cuda.get_device_capability(device) < (8, 9):
        raise ValueError(f"a cache of {shape.dtype} needs a GPU of compute capability 8.9; use bfloat16 or float16")
    from .triton_backend import TritonAttention

    num_tokens = shape.num_pages * shape.page_size
    max_model_len = num_tokens if max_model_len is None else min(max_model_len, num_tokens)
    return TritonAttention(
        shape, device, max_num_seqs=max_num_seqs, max_model_len=max_model_len, deterministic=deterministic
    )
