"""Attention in torch operators, for any device: a few padded gathers a layer, never the whole batch's context.

Sequences are grouped by how many queries they bring and how long their context is, so that a group pads little; one
group's keys and values are gathered from their pages, attended to by the fused kernel of torch, and dropped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F

from .interface import AttentionBatch, AttentionLayer, KVShape, Rotation
from .reference import split_heads

_GROUP_TOKENS = 16384
"""Bound on sequences x padded context of one gather: 12 MB of keys at 3 heads of 64 in float32."""

_CACHE_LINE = 64
"""Bytes; what is aligned to it is read in fewest accesses."""

_WASTE = 1.3
"""A group is closed when its longest context exceeds its shortest by this factor (and by more than 64 tokens)."""


@dataclass
class _Group:
    """Sequences that are attended to in one call.

    rows     int64 [b * n]    query tokens, padded ones repeat the sequence's last
    keep     int64 or None    where the real query tokens lie in the padded [b * n] (None: all are real)
    slots    int64 [b * L]    cache slots of the context, the sequence's own first one where padded
    """

    b: int
    n: int
    length: int
    rows: torch.Tensor
    keep: torch.Tensor | None
    slots: torch.Tensor
    query_position: torch.Tensor  # int64 [b, n]
    causal: bool  # one fresh sequence: the kernel's own causal mask serves
    masks: dict[int | None, torch.Tensor | None] = field(default_factory=dict)

    def mask(self, window: int | None, per_kv: int, dtype: torch.dtype) -> torch.Tensor | None:
        """Additive [b, 1, n * per_kv, L], built once a step and shared by all layers with this window."""
        if window not in self.masks:
            key_position = torch.arange(self.length, device=self.query_position.device)
            query = self.query_position[:, :, None]
            visible = key_position <= query
            if window is not None:
                visible &= key_position > query - window
            mask = None
            if not bool(visible.all()):
                mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)
                mask = mask.repeat_interleave(per_kv, dim=1)[:, None] if self.n > 1 else mask[:, None]
            self.masks[window] = mask
        return self.masks[window]


class TorchAttention:
    """`AttentionBackend` over torch's fused attention.

    Keys and values are [num_layers, num_pages * page_size, num_kv_heads, head_dim] each.

    Cost of a step: every context token's key and value is read once and copied once (the gather), 2 * num_kv_heads *
    head_dim elements a token and layer; 4 * num_heads * head_dim FLOPs per (query, context token) pair.
    """

    def __init__(self, shape: KVShape, device: str = "cpu") -> None:
        self.shape = shape
        slots = shape.num_pages * shape.page_size
        size = (shape.num_layers, slots, shape.num_kv_heads, shape.head_dim)
        self._keys = _zeros(size, shape.dtype, device)
        self._values = _zeros(size, shape.dtype, device)
        self._groups: list[_Group] = []
        self._write = torch.empty(0, dtype=torch.int64)
        self._device = device

    def plan(self, batch: AttentionBatch) -> None:
        self._write = torch.from_numpy(batch.write_slot).to(self._device)
        self._groups = [self._group(batch, members) for members in _partition(batch)]

    def _group(self, batch: AttentionBatch, members: np.ndarray) -> _Group:
        size = self.shape.page_size
        counts = np.diff(batch.query_start)[members].astype(np.int64)
        contexts = batch.context_len[members].astype(np.int64)
        b, n, length = len(members), int(counts.max()), int(contexts.max())
        pages = batch.page_table[members, : -(-length // size)].astype(np.int64)
        slots = (pages[:, :, None] * size + np.arange(size)).reshape(b, -1)[:, :length]
        # A mask multiplies by zero, which is not nothing: NaN of another sequence must not even be read.
        slots = np.where(np.arange(length) < contexts[:, None], slots, slots[:, :1])
        offset = np.minimum(np.arange(n), counts[:, None] - 1)
        rows = batch.query_start[members].astype(np.int64)[:, None] + offset
        keep = None if (counts == n).all() else np.flatnonzero(np.arange(n) < counts[:, None])
        position = (contexts - counts)[:, None] + offset
        return _Group(
            b=b,
            n=n,
            length=length,
            rows=torch.from_numpy(rows.reshape(-1)).to(self._device),
            keep=None if keep is None else torch.from_numpy(keep).to(self._device),
            slots=torch.from_numpy(np.ascontiguousarray(slots.reshape(-1))).to(self._device),
            query_position=torch.from_numpy(position).to(self._device),
            causal=b == 1 and n == length and n > 1,
        )

    def run(self, layer: AttentionLayer, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See HeadAttention.run."""
        keys, values = self._keys[layer.index], self._values[layer.index]
        keys.index_copy_(0, self._write, k.to(keys.dtype))
        values.index_copy_(0, self._write, v.to(values.dtype))
        out = torch.empty_like(q)
        for group in self._groups:
            attended = _attend(group, q.index_select(0, group.rows), keys, values, layer)
            if group.keep is None:
                out.index_copy_(0, group.rows, attended)
            else:
                out.index_copy_(0, group.rows[group.keep], attended[group.keep])
        return out

    def run_qkv(self, layer: AttentionLayer, qkv: torch.Tensor, rotation: Rotation | None) -> torch.Tensor:
        """See AttentionBackend.run_qkv."""
        return self.run(layer, *split_heads(qkv, self.shape, layer.norm, rotation))


def _attend(
    group: _Group, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, layer: AttentionLayer
) -> torch.Tensor:
    """Attention of one group: q [b * n, num_heads, D] in, the same shape out."""
    b, n, length = group.b, group.n, group.length
    scale, window, softcap = layer.scale, layer.window, layer.softcap
    heads, kv_heads, dim = q.shape[1], keys.shape[1], q.shape[2]
    per_kv = heads // kv_heads
    k = keys.index_select(0, group.slots).to(q.dtype).view(b, length, kv_heads, dim).transpose(1, 2)
    v = values.index_select(0, group.slots).to(q.dtype).view(b, length, kv_heads, dim).transpose(1, 2)
    if group.causal and softcap is None and (window is None or window >= n):
        whole = q.view(1, n, heads, dim).transpose(1, 2)
        out = F.scaled_dot_product_attention(whole, k, v, is_causal=True, scale=scale, enable_gqa=per_kv > 1)
        return out.transpose(1, 2).reshape(n, heads, dim)
    # The heads that share a key-value head are packed as further query rows: keys and values are read once.
    packed = q.view(b, n, kv_heads, per_kv, dim).permute(0, 2, 1, 3, 4).reshape(b, kv_heads, n * per_kv, dim)
    mask = group.mask(window, per_kv, q.dtype)
    if softcap is None:
        out = F.scaled_dot_product_attention(packed, k, v, attn_mask=mask, scale=scale)
    else:
        scores = torch.tanh(packed @ k.transpose(2, 3) * (scale / softcap)) * softcap
        out = torch.softmax(scores.float() if mask is None else scores.float() + mask, dim=-1).to(v.dtype) @ v
    return out.view(b, kv_heads, n, per_kv, dim).permute(0, 2, 1, 3, 4).reshape(b * n, heads, dim)


def _zeros(size: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    """Zeros. On the CPU they cost nothing until they are used: the system hands out zeroed memory page by page."""
    if device != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    num_bytes = math.prod(size) * dtype.itemsize
    memory = np.zeros(num_bytes + _CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE
    return torch.from_numpy(memory[start : start + num_bytes]).view(dtype).view(size)


def _partition(batch: AttentionBatch) -> list[np.ndarray]:
    """Splits the sequences into groups of like query counts and context lengths (indices into the batch)."""
    counts = np.diff(batch.query_start)
    contexts = batch.context_len
    groups: list[list[int]] = []
    for index in np.lexsort((contexts, counts)):
        count, context = int(counts[index]), int(contexts[index])
        if groups:
            group = groups[-1]
            first_count, first_context = int(counts[group[0]]), int(contexts[group[0]])
            like = count == first_count or (first_count > 1 and count <= min(64, first_count + 8))
            close = context <= max(first_context * _WASTE, first_context + 64)
            if like and close and (len(group) + 1) * max(context, *(int(contexts[i]) for i in group)) <= _GROUP_TOKENS:
                group.append(int(index))
                continue
        groups.append([int(index)])
    return [np.array(group) for group in groups]
