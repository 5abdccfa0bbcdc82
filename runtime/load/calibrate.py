"""Scales for an 8-bit KV cache, calibrated by the largest keys and values of each head on a short text."""

from __future__ import annotations

import numpy as np
import torch

from ...kernels.attention.interface import AttentionBatch, AttentionLayer, KVShape
from ...kernels.attention.torch_backend import TorchAttention
from ..models.model import Model

TEXT = """\
The harbour was quiet before the storm. Two boats came in late, and the men who tied them up spoke of waves higher than
the lighthouse wall. "We will not go out tomorrow," said the older one. In the office, a clerk wrote down the day's
figures: 1,204 crates of herring, 87 of mackerel, 3 of lobster; total 41,630.50. At six o'clock the telephone rang.
{"from": "coast guard", "level": 4, "valid_until": "2026-03-01T06:00:00Z"} Nobody was surprised. def forecast(t):
    return [wind(t), rain(t)] * 2  # as the old program had it
Les volets furent fermés; die Straße war leer. By midnight the first shutters were banging, and the sea had begun to
climb the steps of the market square."""
"""Prose, numbers, code and other languages, which activate heads of all kinds."""

_HEADROOM = 2.0
"""Headroom for larger values, which costs nothing: an 8-bit float is as precise at half its range as at its end."""

_LARGEST = torch.finfo(torch.float8_e4m3fn).max


def kv_scales(model: Model, tokens: list[int], dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Returns the scales that keys and values are divided by to fit e4m3: float32 [num_layers, num_kv_heads] each.

    `tokens` are those of TEXT; `dtype` is the model's.
    """
    probe = _Calibration(
        KVShape(model.num_layers, len(tokens) + 1, 1, model.num_kv_heads, model.head_dim, dtype), device
    )
    slots = np.arange(1, len(tokens) + 1)
    batch = AttentionBatch(
        query_start=np.array([0, len(tokens)], np.int32),
        context_len=np.array([len(tokens)], np.int32),
        page_table=slots[None].astype(np.int32),
        write_slot=slots.astype(np.int64),
    )
    with torch.inference_mode():
        probe.plan(batch)
        positions = torch.arange(len(tokens), device=device)
        model.forward(torch.tensor(tokens, device=device), positions, probe)
    # A head that is always zero needs a scale too.
    return tuple((largest * (_HEADROOM / _LARGEST)).clamp(min=1e-6) for largest in (probe.keys_seen, probe.values_seen))


class _Calibration(TorchAttention):
    """Attention that also records the largest key and value of each head."""

    def __init__(self, shape: KVShape, device: torch.device) -> None:
        super().__init__(shape, str(device))
        self.keys_seen = torch.zeros(shape.num_layers, shape.num_kv_heads, device=device)
        self.values_seen = torch.zeros_like(self.keys_seen)

    def run(self, layer: AttentionLayer, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.keys_seen[layer.index] = k.float().abs().amax(dim=(0, 2))
        self.values_seen[layer.index] = v.float().abs().amax(dim=(0, 2))
        return super().run(layer, q, k, v)
