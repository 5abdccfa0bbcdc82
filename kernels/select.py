"""Which implementation serves a device: the only place that asks what the device is."""

from __future__ import annotations

from .attention import AttentionBackend, KVShape


def select_attention(shape: KVShape, device: str) -> AttentionBackend:
    """An attention backend with a zeroed cache of `shape` on `device`."""
    from .torch_attention import TorchAttention

    return TorchAttention(shape, device)
